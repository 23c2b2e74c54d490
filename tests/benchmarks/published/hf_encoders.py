"""Encoders and encoder-decoders over tokens of Hugging Face transformers."""

from __future__ import annotations

from hf_common import encoder, translator

TWO = {"num_hidden_layers": 2}

bert = encoder("Bert", **TWO)
bert_classifier = encoder("Bert", "ForSequenceClassification", **TWO)
roberta = encoder("Roberta", **TWO)
distilbert = encoder("DistilBert", n_layers=2)
albert = encoder("Albert", **TWO)
electra = encoder("Electra", "ForSequenceClassification", **TWO)
deberta = encoder("Deberta", **TWO)
deberta_v2 = encoder("DebertaV2", **TWO)
mpnet = encoder("MPNet", **TWO)
xlm_roberta = encoder("XLMRoberta", **TWO)
modernbert = encoder("ModernBert", num_hidden_layers=3)
convbert = encoder("ConvBert", **TWO)
squeezebert = encoder("SqueezeBert", **TWO)
nystromformer = encoder("Nystromformer", **TWO)
fnet = encoder("FNet", **TWO)
roformer = encoder("RoFormer", **TWO)
megatron_bert = encoder("MegatronBert", **TWO)
mobilebert = encoder("MobileBert", **TWO)
longformer = encoder("Longformer", masked=False, attention_window=32, length=64, **TWO)
big_bird = encoder("BigBird", attention_type="original_full", **TWO)
funnel = encoder("Funnel", "ForSequenceClassification", block_sizes=[1, 1, 1])
ibert = encoder("IBert", **TWO)
xlnet = encoder("XLNet", "LMHeadModel", n_layer=2)
canine = encoder("Canine", "ForSequenceClassification", **TWO, length=128)
esm = encoder("Esm", vocab_size=33, pad_token_id=1, mask_token_id=32, **TWO)
nomic_bert = encoder("NomicBert", **TWO)

t5 = translator("T5", num_layers=2)
mt5 = translator("MT5", num_layers=2)
bart = translator("Bart", encoder_layers=2, decoder_layers=2)
pegasus = translator("Pegasus", encoder_layers=2, decoder_layers=2)
mbart = translator("MBart", encoder_layers=2, decoder_layers=2)
marian = translator("Marian", "MTModel", encoder_layers=2, decoder_layers=2)
m2m_100 = translator("M2M100", encoder_layers=2, decoder_layers=2, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
blenderbot = translator("Blenderbot", encoder_layers=2, decoder_layers=2)
led = translator("LED", encoder_layers=2, decoder_layers=2, attention_window=32)
switch_transformers = translator("SwitchTransformers", masked=True, num_layers=2, num_decoder_layers=2, num_experts=8)
t5gemma = translator(
    "T5Gemma",
    encoder={"num_hidden_layers": 2, "vocab_size": 32000},
    decoder={"num_hidden_layers": 2, "vocab_size": 32000, "cross_attention_hidden_size": 2304},
)
