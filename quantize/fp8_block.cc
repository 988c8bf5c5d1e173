#include "quantize/kernels/fp8_cast.h"
#include "quantize/schemes.h"

namespace ingot::quantize {

const Scheme kFp8BlockScheme{.id = formats::SchemeId::kFp8Block,
                             .element_bytes = 1,
                             .decode = decode_fp8_block,
                             .encode = nullptr};

}  // namespace ingot::quantize
