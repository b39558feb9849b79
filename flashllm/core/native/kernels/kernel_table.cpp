#include "kernel_table.h"

#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace flash_core {

namespace {

#if defined(__x86_64__)

// __builtin_cpu_supports asks the system too whether it saves the wide registers, but older
// compilers do not know f16c by that name.
bool has_f16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
}

#if FLASH_HAS_AVXVNNI
bool has_avxvnni() {
  constexpr unsigned int kAvxVnni = 1U << 4;
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnni) != 0;
}
#endif

bool has_avx512() { return has_avx2() && __builtin_cpu_supports("avx512f") != 0; }

bool has_vnni() {
  return has_avx512() && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
}

#endif

}  // namespace

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables = {&scalar_kernels()};
#if defined(__x86_64__)
  if (has_avx2()) tables.push_back(&avx2_kernels());
#if FLASH_HAS_AVXVNNI
  if (has_avxvnni()) tables.push_back(&avxvnni_kernels());
#endif
  if (has_avx512()) tables.push_back(&avx512_kernels());
  if (has_vnni()) tables.push_back(&avx512vnni_kernels());
#elif defined(__aarch64__)
  tables.push_back(&neon_kernels());
#endif
  return tables;
}

const KernelTable& find_kernels(const char* name) {
  const std::vector<const KernelTable*> tables = available_kernels();
  const std::string wanted = name;
  if (wanted.empty()) return *tables.back();
  std::string known;
  for (const KernelTable* table : tables) {
    if (wanted == table->name) return *table;
    known += known.empty() ? table->name : std::string(", ") + table->name;
  }
  throw std::invalid_argument("isa is '" + wanted + "'; available: " + known);
}

}  // namespace flash_core
