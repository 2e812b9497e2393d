"""How far weighted sums of neurons, and attention scores, can go over the unit ball: bounds with certificates."""

from normscope.bounds.activations import ACTIVATIONS, Activation
from normscope.bounds.ascent import witness
from normscope.bounds.attention_scores import Scores, rotary_range, score_range
from normscope.bounds.divided import divided
from normscope.bounds.neurons import cheap, hidden_range, intervals
from normscope.bounds.tight_bound import Tight, tight
from normscope.certificates.neuron_certificates import Division, NeuronCertificate, Neurons, ScoreCertificate

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Division",
    "NeuronCertificate",
    "Neurons",
    "ScoreCertificate",
    "Scores",
    "Tight",
    "cheap",
    "divided",
    "hidden_range",
    "intervals",
    "rotary_range",
    "score_range",
    "tight",
    "witness",
]
