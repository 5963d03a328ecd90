"""Adapters as a folder that PEFT reads: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from workload.model.adapters import LoraConfig, adapted, pair
from workload.model.huggingface import TENSORS

CONFIG, ADAPTERS = "adapter_config.json", "adapter_model.safetensors"


def save(folder: Path, layers: Mapping[str, Any], lora: LoraConfig, base: str, dtype: str) -> list[str]:
    """Write adapters; return the files' names.

    Args:
        folder: created if missing.
        layers: adapters by name, stacked on the layers.
        lora: their settings.
        base: folder or hub id of the frozen model.
        dtype: `float32` or `bfloat16`.
    """
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(np.float32)

    def stored(array: Any) -> NDArray[Any]:  # O x I, as torch has it
        return np.ascontiguousarray(np.asarray(array).T).astype(kind)

    tensors = {}
    for matrix in adapted(lora).values():
        name = TENSORS[matrix].name.removesuffix(".weight")
        for side, adapter in zip("AB", pair(matrix), strict=True):
            for n, array in enumerate(layers[adapter]):
                tensors[f"base_model.model.{name.format(n=n)}.lora_{side}.weight"] = stored(array)
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(adapted(lora)),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / ADAPTERS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    (folder / ADAPTERS).chmod((folder / CONFIG).stat().st_mode)  # safetensors denies other users access
    return [ADAPTERS, CONFIG]
