// Detection of instruction sets with CPUID.
//
// The compilers' __builtin_cpu_supports needs a part of their runtime that not all of them provide.

#include "processor.h"

#include <cstdint>

#include "system.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace regard::processor {

bool runs_baseline() { return true; }
bool is_faster() { return true; }

#if defined(__x86_64__)

namespace {

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros if there is none
  return r;
}

bool all(std::uint32_t value, std::uint32_t bits) { return (value & bits) == bits; }

// The register classes that the operating system saves at context switches, one bit each.
std::uint32_t kept_registers() {
  if (!all(cpuid(1).ecx, bit_OSXSAVE)) return 0;
  std::uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr std::uint32_t kept_ymm = 0x06;
constexpr std::uint32_t kept_zmm = 0xe6;
constexpr std::uint32_t kept_tiles = 0x60000;
constexpr std::uint32_t amx_bf16 = 1 << 22, amx_tile = 1 << 24;  // compilers name them differently

}  // namespace

// All of x86-64-v3, since the compiler may use any of it.
bool runs_avx2() {
  return all(kept_registers(), kept_ymm) &&
         all(cpuid(1).ecx, bit_AVX | bit_FMA | bit_F16C | bit_MOVBE) &&
         all(cpuid(7).ebx, bit_AVX2 | bit_BMI | bit_BMI2) && all(cpuid(0x80000001).ecx, bit_LZCNT);
}

// And all of x86-64-v4.
bool runs_avx512() {
  return runs_avx2() && all(kept_registers(), kept_zmm) &&
         all(cpuid(7).ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL);
}

bool runs_avx512vnni() { return runs_avx512() && all(cpuid(7).ecx, bit_AVX512VNNI); }

bool runs_avx512bf16() { return runs_avx512vnni() && all(cpuid(7, 1).eax, bit_AVX512BF16); }

bool runs_amx() {
  return runs_avx512bf16() && all(kept_registers(), kept_tiles) &&
         all(cpuid(7).edx, amx_bf16 | amx_tile) && system::has_amx();
}

// On Xeons, whose fast bfloat16 unit is AMX, the kernels take 1.3 to 1.9 times as long with dot
// products of pairs as with floats.
bool is_faster_by_avx512bf16() { return cpuid(0).ebx != signature_INTEL_ebx; }

bool is_amd() {
  // Once, since the instruction is slow in virtual machines.
  static const bool amd = cpuid(0).ebx == signature_AMD_ebx;
  return amd;
}

#else

bool is_amd() { return false; }

#endif

}  // namespace regard::processor
