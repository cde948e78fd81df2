// The instruction sets that the processor and the operating system support.
#pragma once

namespace regard::processor {

bool runs_baseline();
bool runs_avx2();
bool runs_avx512();
bool runs_avx512vnni();
bool runs_avx512bf16();
bool runs_amx();

// Whether a supported set is faster than those below it.
bool is_faster();
bool is_faster_by_avx512bf16();

// Whether its vendor is AMD.
bool is_amd();

}  // namespace regard::processor
