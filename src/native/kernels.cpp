// The kernels, compiled once for each instruction set: REGARD_SET is its name.
//
// No object here may be initialized when the library is loaded: that code would be this set's, and
// the processor may not run it.

#include "kernels.h"

#define REGARD_TEXT_OF(name) #name
#define REGARD_TEXT(name) REGARD_TEXT_OF(name)

namespace regard::REGARD_SET {

const Kernels &kernels() {
    static constexpr Kernels table = {REGARD_TEXT(REGARD_SET)};
    return table;
}

}  // namespace regard::REGARD_SET
