"""Models of Hugging Face `transformers` at reduced width: imported, edited, compared with PyTorch.

    class ─→ random weights from a seed ─→ tg.from_torch ─→ two budgets × random edits ─→ a row

An edit changes one token, a patch of pixels or a stretch of sound, in one of the model's inputs.
Every output of every run is compared with PyTorch's. Each model has a process of its own and a time
limit, so that one that fails loses nothing; the file is written after each, and the same command
goes on from there.

    python -m benchmarks.zoo_models [--only NAME …] [--again]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Command, largest_error, measured_apart, measured_here, ms
from tgbench.base.errors import BudgetError
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, from_torch
from tgbench.sources.torch.program import paths

Array: TypeAlias = np.ndarray[Any, Any]
Inputs: TypeAlias = dict[str, Array]
VOCAB, TOKENS, IMAGE = 64, 16, 32
EDITS, LIMIT_S, TOLERANCE = 8, 300.0, 1e-4
SHARE = 0.3  # of the way from the least budget to the one that is needed if nothing is given up
FEATURES = 64  # of sound, where a model takes features


@dataclass(frozen=True)
class Model:
    """A class of `transformers`, its configuration, and what it is given.

    Fields:
        name: of the class.
        options: of its configuration.
        inputs: makers of the inputs that are edited, by name.
        given: other arguments of `forward`.
        config: name of the configuration class, where it is not the model's.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[str, ...] = ("input_ids",)
    given: Mapping[str, Any] | None = None
    config: str = ""
    sound: tuple[int, ...] = ()

    def module(self) -> nn.Module:
        """Seeded random weights; norms and biases are moved off 1 and 0, so that they show."""
        import transformers

        kind = self.config or self.name.removesuffix("Model") + "Config"
        config = getattr(transformers, kind)(**self.options)
        torch.manual_seed(0)
        made: nn.Module = getattr(transformers, self.name)(config).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() < 2:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        return made

    def example(self) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(1)
        shapes = {"pixel_values": (1, 3, IMAGE, IMAGE), "input_features": self.sound,
                  "input_values": self.sound}  # fmt: skip
        return {
            name: torch.randn(shapes[name], generator=random) if name in shapes
            else torch.randint(3, VOCAB, (1, TOKENS), generator=random)
            for name in self.inputs
        }  # fmt: skip


# --- the models -----------------------------------------------------------------------------------

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 40,
}  # fmt: skip
GPT: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 40,
}
PAIR: Mapping[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
VISION: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": IMAGE, "patch_size": 8,
}  # fmt: skip
SPEECH: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}  # fmt: skip
HEADS = {"num_key_value_heads": 2}
PADDED = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NO_CACHE = {"use_cache": False}


def encoder(name: str, **options: Any) -> Model:
    return Model(name, {**SIZES, **options})


def decoder(name: str, **options: Any) -> Model:
    return Model(name, {**SIZES, **HEADS, **PADDED, **options}, given=NO_CACHE)


def gpt(name: str, **options: Any) -> Model:
    return Model(name, {**GPT, **options}, given=NO_CACHE)


def pair(name: str, **options: Any) -> Model:
    both = ("input_ids", "decoder_input_ids")
    return Model(name, {**PAIR, **options}, both, NO_CACHE)


def image(name: str, **options: Any) -> Model:
    return Model(name, options, ("pixel_values",))


def patches(name: str, **options: Any) -> Model:
    return image(name, **{**VISION, **options})


def wave(name: str, **options: Any) -> Model:
    return Model(name, {**SPEECH, **options}, ("input_values",), sound=(1, 1600))


MODELS = {
    model.name: model
    for model in (
        # encoders of text
        encoder("BertModel"),
        encoder("RobertaModel"),
        encoder("XLMRobertaModel"),
        encoder("CamembertModel"),
        Model("DistilBertModel", {"vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2,
                                  "n_heads": 4, "max_position_embeddings": 40}),
        encoder("AlbertModel", embedding_size=16),
        encoder("ElectraModel", embedding_size=16),
        encoder("DebertaV2Model", relative_attention=True, position_buckets=8,
                pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True),
        encoder("MPNetModel"),
        encoder("SqueezeBertModel", embedding_size=32),
        encoder("FNetModel"),
        encoder("ErnieModel"),
        encoder("ModernBertModel", local_attention=6, global_attn_every_n_layers=2, **PADDED,
                cls_token_id=1, sep_token_id=2),
        encoder("BigBirdModel", attention_type="original_full"),
        encoder("ConvBertModel", embedding_size=32),
        encoder("Data2VecTextModel"),
        encoder("IBertModel"),
        encoder("LayoutLMModel"),
        encoder("MegatronBertModel"),
        encoder("MobileBertModel", embedding_size=32, intra_bottleneck_size=32),
        encoder("NystromformerModel"),
        encoder("RemBertModel", input_embedding_size=16, output_embedding_size=16),
        encoder("RoFormerModel", embedding_size=32),
        encoder("SplinterModel"),
        Model("CLIPTextModel", {**SIZES, **PADDED}),
        Model("SiglipTextModel", {**SIZES, **PADDED, "max_position_embeddings": TOKENS}),
        # decoders
        gpt("GPT2Model"),
        gpt("GPTJModel", rotary_dim=4),
        gpt("CodeGenModel", rotary_dim=4),
        gpt("GPTBigCodeModel"),
        Model("GPTNeoModel", {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2,
                              "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                              "window_size": 4, "max_position_embeddings": 40}, given=NO_CACHE),
        decoder("GPTNeoXModel"),
        decoder("OPTModel", ffn_dim=48, word_embed_proj_dim=32),
        Model("BloomModel", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},
              given=NO_CACHE),
        decoder("LlamaModel"),
        decoder("MistralModel", sliding_window=5),
        decoder("MixtralModel", num_local_experts=4),
        decoder("Qwen3MoeModel", head_dim=8, num_experts=4, num_experts_per_tok=2,
                moe_intermediate_size=16),
        decoder("OlmoeModel", num_experts=4, num_experts_per_tok=2),
        decoder("GptOssModel", head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                sliding_window=5),
        decoder("Qwen2Model"),
        decoder("Qwen3Model", head_dim=8),
        decoder("GemmaModel", head_dim=8),
        decoder("Gemma2Model", head_dim=8, sliding_window=5, query_pre_attn_scalar=8),
        Model("Gemma3TextModel", {**SIZES, **HEADS, **PADDED, "head_dim": 8, "sliding_window": 5,
                                  "layer_types": ["sliding_attention", "full_attention"]},
              given=NO_CACHE),
        decoder("PhiModel", num_key_value_heads=4),
        decoder("Phi3Model"),
        decoder("FalconModel", new_decoder_architecture=False),
        decoder("StableLmModel"),
        decoder("OlmoModel"),
        decoder("Olmo2Model"),
        decoder("CohereModel"),
        decoder("GraniteModel"),
        decoder("Starcoder2Model"),
        decoder("GlmModel", head_dim=8),
        decoder("NemotronModel"),
        decoder("PersimmonModel"),
        Model("MambaModel", {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 4,
                             "num_hidden_layers": 2}, given=NO_CACHE),
        Model("FalconMambaModel", {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 4,
                                   "num_hidden_layers": 2}, given=NO_CACHE),
        Model("RwkvModel", {"vocab_size": VOCAB, "hidden_size": 32, "attention_hidden_size": 32,
                            "num_hidden_layers": 2, "context_length": 40}, given=NO_CACHE),
        decoder("ArceeModel"),
        decoder("BioGptModel"),
        gpt("CTRLModel", dff=48),
        decoder("DeepseekV3Model", num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8,
                qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, n_routed_experts=4,
                moe_intermediate_size=16, num_experts_per_tok=2, n_group=1, topk_group=1),
        decoder("Ernie4_5Model"),
        decoder("GPTNeoXJapaneseModel"),
        Model("Mamba2Model", {"vocab_size": VOCAB, "hidden_size": 32, "num_heads": 4,
                              "head_dim": 16, "state_size": 8, "n_groups": 1,
                              "num_hidden_layers": 2}, given=NO_CACHE),
        Model("MptModel", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4,
                           "max_seq_len": 40}, given=NO_CACHE),
        Model("OpenAIGPTModel", GPT),
        decoder("RecurrentGemmaModel", lru_width=32, attention_window_size=5),
        decoder("SmolLM3Model"),
        Model("XGLMModel", {"vocab_size": VOCAB, "d_model": 32, "num_layers": 2, "ffn_dim": 48,
                            "attention_heads": 4, "max_position_embeddings": 40}, given=NO_CACHE),
        # encoders and decoders
        Model("T5Model", {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48,
                          "num_layers": 2, "num_heads": 4},
              ("input_ids", "decoder_input_ids"), NO_CACHE),
        pair("BartModel"),
        pair("PegasusModel"),
        pair("MBartModel"),
        pair("MarianModel"),
        pair("BlenderbotSmallModel"),
        # images
        patches("ViTModel"),
        patches("DeiTModel"),
        patches("Dinov2Model"),
        patches("Dinov2WithRegistersModel"),
        patches("ViTMSNModel"),
        patches("YolosModel", image_size=[IMAGE, IMAGE]),
        patches("BeitModel", use_relative_position_bias=True),
        patches("Data2VecVisionModel"),
        patches("CLIPVisionModel"),
        patches("SiglipVisionModel"),
        image("SwinModel", image_size=IMAGE, patch_size=4, embed_dim=16, depths=[2, 1],
              num_heads=[2, 2], window_size=4),
        image("Swinv2Model", image_size=IMAGE, patch_size=4, embed_dim=16, depths=[2, 1],
              num_heads=[2, 2], window_size=4),
        image("FocalNetModel", image_size=IMAGE, patch_size=4, embed_dim=16, depths=[1, 1],
              focal_levels=[1, 1], focal_windows=[3, 3]),
        image("MobileViTModel", image_size=IMAGE, hidden_sizes=[16, 24, 32],
              neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=4),
        image("ConvNextModel", hidden_sizes=[8, 16], depths=[1, 2], num_stages=2),
        image("ConvNextV2Model", hidden_sizes=[8, 16], depths=[1, 2], num_stages=2),
        image("ResNetModel", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2],
              layer_type="basic"),
        image("RegNetModel", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], groups_width=8),
        image("MobileNetV1Model", depth_multiplier=0.25),
        image("MobileNetV2Model", depth_multiplier=0.25),
        image("EfficientNetModel", width_coefficient=0.25, depth_coefficient=0.3, image_size=IMAGE,
              hidden_dim=320),
        image("SegformerModel", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
              hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
              mlp_ratios=[2, 2]),
        image("PoolFormerModel", num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16],
              patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1]),
        image("PvtModel", image_size=IMAGE, num_encoder_blocks=2, depths=[1, 1],
              sequence_reduction_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[4, 2],
              strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
        image("BitModel", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], num_groups=8),
        image("DetrModel", d_model=32, encoder_layers=1, decoder_layers=1, num_queries=6,
              encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
              decoder_ffn_dim=48, use_timm_backbone=False, use_pretrained_backbone=False,
              backbone_config={"model_type": "resnet", "embedding_size": 8, "layer_type": "basic",
                               "hidden_sizes": [8, 16], "depths": [1, 1],
                               "out_features": ["stage2"]}),
        # sound
        wave("Wav2Vec2Model"),
        wave("HubertModel"),
        wave("WavLMModel"),
        wave("UniSpeechModel"),
        wave("Data2VecAudioModel"),
        Model("ASTModel", {**VISION, "num_mel_bins": 32, "max_length": FEATURES,
                           "frequency_stride": 8, "time_stride": 8}, ("input_values",),
              sound=(1, FEATURES, 32)),
        Model("WhisperModel", {**PAIR, "num_mel_bins": 16, "max_source_positions": FEATURES // 2,
                               "max_target_positions": 40},
              ("input_features", "decoder_input_ids"), NO_CACHE, sound=(1, 16, FEATURES)),
    )
}  # fmt: skip
QUICK = ("BertModel", "GPT2Model", "T5Model", "SwinModel", "ASTModel")
# What every process would load for itself.
PRELOADED = ("benchmarks.zoo_models", "torch.export._trace", "transformers.modeling_utils")


# --- edits ----------------------------------------------------------------------------------------


def edited(inputs: Inputs, random: np.random.Generator) -> Inputs:
    """A token, a patch or a stretch of one of the inputs is another one."""
    name = list(inputs)[int(random.integers(len(inputs)))]
    value = inputs[name].copy()
    places = tuple(map(partial(_place, value, random), range(value.ndim)))
    old = value[places]
    value[places] = (
        random.integers(3, VOCAB, old.shape) if value.dtype == np.int64
        else random.normal(size=old.shape)
    )  # fmt: skip
    return {**inputs, name: value}


def _place(value: Array, random: np.random.Generator, axis: int) -> slice:
    """One token; a quarter of an image's height and width; an eighth of the longest axis."""
    size = value.shape[axis]
    if value.dtype == np.int64:
        length = 1
    elif value.ndim == 4:
        length = size // 4 if axis > 1 else size
    else:
        length = size // 8 if size == max(value.shape) else size
    start = int(random.integers(size - length + 1))
    return slice(start, start + length)


# --- one model ------------------------------------------------------------------------------------


def measured(model: Model, edits: int) -> dict[str, Any]:
    """Import a model, and follow random edits at two budgets."""
    import transformers

    transformers.logging.set_verbosity_error()  # ids of special tokens lie outside so few words
    module, given = model.module(), dict(model.given or {})
    example = model.example()
    imported = from_torch(module, kwargs={**example, **given})
    start = {name: tensor.numpy() for name, tensor in example.items()}
    eager = partial(_eager, module, given)
    ample = GraphSession(imported, making="always")
    rows = {"ample": followed(ample, start, eager, edits)}
    most, least = ample.placement.size_bytes, _least(imported, start)
    tight = GraphSession(imported, memory=least + int(SHARE * max(most - least, 0)),
                         making="always")  # fmt: skip
    rows["tight"] = followed(tight, start, eager, edits)
    nodes = imported.graph.nodes
    return {
        "nodes": sum(not node.is_leaf for node in nodes),
        "opaque": sum(node.op == "opaque" for node in nodes),
        "parameters": sum(tensor.numel() for tensor in imported.weights.values()),
        "worst_error": max(row["worst_error"] for row in rows.values()),
        "budgets": rows,
    }


def _eager(module: nn.Module, given: Mapping[str, Any], inputs: Inputs) -> dict[str, Array]:
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    with torch.no_grad():
        return {name: t.numpy() for name, t in paths(module(**tensors, **given), "")}


def _least(imported: Imported, start: Inputs) -> int:
    """The smallest budget that works for a whole run."""
    try:
        GraphSession(imported, memory=0).run(start)
    except BudgetError as error:
        return error.needed_bytes
    return 0


def followed(
    session: GraphSession, start: Inputs, eager: Callable[[Inputs], dict[str, Array]], edits: int
) -> dict[str, Any]:
    """Random edits one after the other: errors, shares of the work, and the processor's time."""
    random = np.random.default_rng(5)
    inputs = {name: value for name, value in start.items() if name in session.graph.inputs}
    worst = largest_error(session.run(inputs), eager(start))
    shares, ours, theirs = [], [], []
    for _ in range(edits):
        inputs = edited(inputs, random)
        found, took = _timed(partial(session.run, inputs))
        right, beside = _timed(partial(eager, {**start, **inputs}))
        worst = max(worst, largest_error(found, right))
        shares.append(session.report().recomputed)
        ours.append(took)
        theirs.append(beside)
    return {
        "memory_bytes": session.placement.size_bytes, "worst_error": worst,
        "recomputed": statistics.median(shares), "run_ns": statistics.median(ours),
        "eager_ns": statistics.median(theirs),
    }  # fmt: skip


def _timed(call: Callable[[], Any]) -> tuple[Any, int]:
    began = time.process_time_ns()
    return call(), time.process_time_ns() - began


# --- all of them ----------------------------------------------------------------------------------


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    if "error" in found:
        return [name, *["–"] * 7, found["error"].splitlines()[0][:60]]
    ample, tight = found["budgets"]["ample"], found["budgets"]["tight"]
    return [
        name, str(found["nodes"]), str(found["opaque"]), f"{found['worst_error']:.0e}",
        *(f"{part['recomputed']:.0%}" for part in (ample, tight)),
        ms(ample["run_ns"]), ms(ample["eager_ns"]), "" if _is_equal(found) else "differs",
    ]  # fmt: skip


def _is_equal(found: Mapping[str, Any]) -> bool:
    return "error" not in found and found["worst_error"] <= TOLERANCE


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all models; what is there already is not measured again."""
    command = Command("zoo_models", __doc__, "zoo")
    command.add_argument("--only", nargs="+", default=list(MODELS), help="names of classes")
    command.add_argument("--again", action="store_true", help="measure what is there already too")
    command.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each model")
    options, record = command.begin(argv)
    results = measured_here(options.output).get("models", {})
    for name in QUICK[:1] if options.quick else options.only:
        if options.again or name not in results:
            note(name)
            work = partial(measured, MODELS[name], 2 if options.quick else EDITS)
            results[name] = measured_apart(work, options.limit, PRELOADED)
            record.write({"totals": totals(results), "models": results}, options.output)
    header = [
        "model", "nodes", "opaque", "error", "recomputed", "tight", "run, ms", "eager, ms", "",
    ]  # fmt: skip
    say(table(header, [row(name, found) for name, found in results.items()]))
    say(str(totals(results)))
    return 0


def totals(results: Mapping[str, Any]) -> dict[str, int]:
    """How many there are, came in, are equal to PyTorch, and need no opaque op."""
    imported = [found for found in results.values() if "error" not in found]
    return {
        "models": len(results), "imported": len(imported),
        "equal": sum(map(_is_equal, imported)),
        "native": sum(not found["opaque"] for found in imported),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
