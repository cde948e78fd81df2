"""Answers with what they rest on, by a pipeline of transformers and a small server.

python docs/examples/serving.py smollm2
curl -s localhost:8000/answers -H 'content-type: application/json' \
    -d '{"document": "…", "question": "…", "tokens": 4}'
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from transformers import Pipeline

import regard
from regard import lens


class AnswerPipeline(Pipeline):
    """Answers a question about a document, and says which tokens and passages the answer is of."""

    def __init__(self, opened: regard.models.LanguageModel) -> None:
        super().__init__(model=opened.module, tokenizer=opened.tokenizer)
        self.opened = opened

    def _sanitize_parameters(self, tokens: int = 8) -> tuple[dict[str, Any], ...]:
        return {}, {"tokens": tokens}, {}

    def preprocess(self, asked: dict[str, str]) -> dict[str, Any]:
        """Put the question behind the document, and in a neutral text "N/A" in its place."""
        document, question = asked["document"], asked["question"]
        prompt = self.opened.read(f"{document}\n\n{question}")
        passages = lens.split_passages(document, prompt.offsets)
        if not passages:
            raise ValueError("document holds white space alone")
        neutral = self.opened.read(f"{document}\n\nN/A")
        answer = self.opened.tokenizer.encode(" N/A")
        return {
            "ids": torch.tensor(prompt.ids),
            "passages": passages,
            "neutral": torch.tensor([*neutral.ids, *answer]),
            "of_neutral": lens.Answer(slice(len(neutral.ids), len(neutral.ids) + len(answer))),
        }

    def _forward(self, inputs: dict[str, Any], tokens: int) -> dict[str, Any]:
        start, context = len(inputs["ids"]), self.opened.context
        if context is not None and start + tokens > context:
            raise ValueError(f"{start} tokens and an answer are more than the model's {context}")
        ids = self.model.generate(inputs["ids"][None], max_new_tokens=tokens, do_sample=False)[0]
        ended = (at for at in range(start + 1, len(ids)) if int(ids[at]) in self.opened.ends)
        ids = ids[: next(ended, len(ids))]
        answer = lens.Answer(slice(start, len(ids)))
        parts = lens.toward(self.opened, ids, answer)
        with regard.record(self.model) as recording:
            self.model(ids[None], use_cache=False)
        with regard.record(self.model) as neutral:
            self.model(inputs["neutral"][None], use_cache=False)
        weights = lens.passage_weights(
            recording, inputs["passages"], answer, neutral=(neutral, inputs["of_neutral"])
        )
        return {**inputs, "ids": ids[start:], "parts": parts, "weights": weights}

    def postprocess(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return what goes to the client: the five tokens that add most, and each passage."""
        parts, passages = found["parts"], found["passages"]
        by_token = parts.sources.sum((0, 1))  # over layers and heads
        shares = zip(passages, found["weights"].difference.tolist(), strict=False)
        return {
            "answer": self.tokenizer.decode(found["ids"]),
            "logit": parts.logit,
            "toward": [
                {"position": key, "token": parts.tokens[key], "logit": by_token[key].item()}
                for key in by_token.abs().argsort(descending=True)[:5].tolist()
            ],
            "passages": [{"text": one.text, "weight": share} for one, share in shares],
        }


class Asked(BaseModel):
    """A request; the limits are those of a small machine."""

    document: str = Field(min_length=1, max_length=20_000)
    question: str = Field(min_length=1, max_length=2_000)
    tokens: int = Field(default=8, ge=1, le=64)


def server(answers: AnswerPipeline) -> FastAPI:
    """Return an application of one route, whose requests run on threads beside each other."""
    app = FastAPI(title="answers")

    @app.post("/answers")
    def answer(asked: Asked) -> dict[str, Any]:
        text = {"document": asked.document, "question": asked.question}
        try:
            result: dict[str, Any] = answers(text, tokens=asked.tokens)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        return result

    return app


if __name__ == "__main__":
    opened = regard.models.open(sys.argv[1])
    uvicorn.run(server(AnswerPipeline(opened)), host="127.0.0.1", port=8000)
