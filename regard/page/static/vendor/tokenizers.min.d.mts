/** What the page uses of @huggingface/tokenizers. */
export class Tokenizer {
  constructor(json: object, config: object);
  decoder: { decode(tokens: string[]): string };
  encode(text: string): { ids: number[] };
}
