"""Conversations and instructions of files, as texts by a tokenizer's chat template."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workload.data.sources import Reading, Sample
from workload.data.template import ASSISTANT, ConversationError, Template

OTHERS = ("prompt", "completion", "instruction", "input", "output")
_MEND = "mend it, or leave it out"


@dataclass(frozen=True)
class Conversations:
    """Samples of a reading of conversations, rendered as texts.

    Attributes:
        reading: of conversations: lists of messages, or a user's texts.
        template: renders them.
        system: system message for conversations that lack one; empty: none.
        prompted: see `Template.render`.
        answers: spans are those of the answers alone, and a conversation has to have some.
    """

    reading: Reading
    template: Template
    system: str = ""
    prompted: bool = True
    answers: bool = False

    @property
    def paths(self) -> Sequence[Path]:
        """See `Reading.paths`."""
        return self.reading.paths

    @property
    def decides(self) -> list[Any]:
        """See `Reading.decides`."""
        return [*self.reading.decides, self.template.identity, self.system, self.prompted]

    def files(self) -> list[Path]:
        """See `Reading.files`."""
        return self.reading.files()

    def samples(self) -> Iterator[Sample]:
        """See `Reading.samples`."""
        for sample in self.reading.samples():
            if self.answers and not sample.content and not sample.problem:
                sample = replace(sample, problem="has no messages", fix=_MEND)
            yield self._rendered(sample) if sample.content else sample

    def _rendered(self, sample: Sample) -> Sample:
        content = sample.content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        first = messages[0]
        if self.system and not (isinstance(first, dict) and first.get("role") == "system"):
            messages = [{"role": "system", "content": self.system}, *messages]
        try:
            text = self.template.render(messages, self.prompted)
            if self.answers:
                spans = tuple((ASSISTANT, *span) for span in self.template.answers(messages, text))
                return replace(sample, content=text, spans=spans)
            return replace(sample, content=text, spans=self.template.spans(messages, text, self.prompted))
        except ConversationError as error:
            return replace(sample, content="", problem=str(error), fix=_MEND)


def instruction(row: Mapping[str, Any]) -> list[Any] | None:
    """Return the messages of a row of an instruction and its answer; None if it is none.

    The fields are prompt and completion, both texts or both lists of messages, or instruction, input (which
    may be absent) and output.
    """
    prompt, answer = row.get("prompt"), row.get("completion")
    if isinstance(prompt, list) and isinstance(answer, list):
        return [*prompt, *answer]
    if "instruction" in row:
        parts = [row["instruction"], row.get("input")]
        prompt = "\n\n".join(part for part in parts if isinstance(part, str) and part)
        answer = row.get("output")
    if not (isinstance(prompt, str) and isinstance(answer, str)):
        return None
    return [{"role": "user", "content": prompt}, {"role": ASSISTANT, "content": answer}]
