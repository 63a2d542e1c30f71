"""On a GPU: kernels that are compiled when they are first needed, each beside PyTorch's operators.

No compiler has to be there.

What is outside takes one name, ``from fairseq_aggdec.kernels import gpu``, and calls its functions
(``gpu.products.read``). Which of the two runs is decided in the file that has both: no caller asks.
"""

from fairseq_aggdec.kernels.gpu import attention as attention
from fairseq_aggdec.kernels.gpu import cross as cross
from fairseq_aggdec.kernels.gpu import dependent as dependent
from fairseq_aggdec.kernels.gpu import embedding as embedding
from fairseq_aggdec.kernels.gpu import largest as largest
from fairseq_aggdec.kernels.gpu import logits as logits
from fairseq_aggdec.kernels.gpu import nvrtc as nvrtc
from fairseq_aggdec.kernels.gpu import operators as operators
from fairseq_aggdec.kernels.gpu import products as products
from fairseq_aggdec.kernels.gpu import proof as proof
from fairseq_aggdec.kernels.gpu import trying as trying
