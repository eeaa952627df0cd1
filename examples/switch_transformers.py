# SPDX-License-Identifier: Apache-2.0
"""A model of transformers, with attention of this package under two names."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flash_attention import compat
from flash_attention.compat.transformers import register

device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2}
config = LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=99, pad_token_id=0)
model = LlamaForCausalLM(config).to(device, torch.bfloat16)
ids = torch.randint(3, 99, (2, 17), device=device)
model.set_attn_implementation(register())  # or, in from_pretrained, attn_implementation=register()
model(ids, labels=ids).loss.backward()
compat.install()  # flash_attn and flash_attn_interface are found here from now on
model.set_attn_implementation("flash_attention_2")
model.generate(ids, max_new_tokens=4, do_sample=False)
print(*compat.calls.items())  # how often attention was computed here
model.set_attn_implementation("sdpa")
compat.uninstall()
