/** What the page uses of @huggingface/tokenizers. */
export class Tokenizer {
  constructor(json: object, config: object);
  encode(text: string): { ids: number[] };
}
