"""datatrove's tokenization of JSON lines: FOLDER OUT TOKENIZER END CORES."""

import sys

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

if __name__ == "__main__":
    folder, out, tokenizer, end, cores = sys.argv[1:]
    writer = DocumentTokenizer(
        f"{out}/tokens",
        tokenizer_name_or_path=tokenizer,
        eos_token=end,
        shuffle_documents=False,
        save_filename="tokens",
    )
    LocalPipelineExecutor(
        pipeline=[JsonlReader(folder), writer],
        tasks=int(cores),
        workers=int(cores),
        logging_dir=f"{out}/logs",
    ).run()
