"""Generate by transformers from an exported folder until it stops; print one line of JSON.

PYTHON_WITH_TORCH tests/parity/generate.py FOLDER TEXT
"""

import json
import sys

import transformers

model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
prompt = tokenizer(sys.argv[2], return_tensors="pt")
generated = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0].tolist()
ends = {"eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id}
print(json.dumps({"prompt": prompt["input_ids"][0].tolist(), "found": generated, **ends}))
