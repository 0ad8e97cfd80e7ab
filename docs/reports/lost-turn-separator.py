"""verl: the default continuous-token builder drops what the chat template writes after an answer.

python lost-turn-separator.py, where verl, torch and transformers are: on a CPU.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED, TOLD = {"role": "user", "content": "weather?"}, {"role": "tool", "content": "18 C"}
SAID = {"role": "assistant", "content": "let me see"}

plain = Tokenizer(models.BPE({it: at for at, it in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
plain.decoder = decoders.ByteLevel()
special = ["<|im_start|>", "<|im_end|>"]
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, additional_special_tokens=special)
tokenizer.chat_template = CHATML

builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3_next")
prompt = builder.build_initial_tokens([ASKED])
tokens = prompt + tokenizer.encode("let me see<|im_end|>")  # the model stops there
merge = getattr(builder, "merge_context_tokens", None) or builder.merge_non_assistant_tokens  # 0.9.1; 0.9.0 and main
merged = merge([ASKED, SAID], [ASKED, SAID, TOLD], tokens).token_ids
whole = tokenizer.apply_chat_template([ASKED, SAID, TOLD], tokenize=False, add_generation_prompt=True)
for name, text in (("wrong", tokenizer.decode(merged)), ("right", whole)):
    print(f"{name}: {text[text.index('see') :][:26]!r}")
