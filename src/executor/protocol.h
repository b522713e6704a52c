// How a link marks that data is there.
//
//   simple  headers and slots as in fifo.h: data first, then a flag after a fence. For long chunks;
//           the only protocol of host threads.
//   ll128   as ll, in lines of 128 bytes: 15 words of data and one of flag, written at once by the
//           eight threads that hold them. 15/16 of the bandwidth at nearly the latency of ll, where
//           lines of 128 bytes arrive whole: over NVLink and within a GPU. (NCCL's LL128.)
//   ll      every eight bytes of data travel in a line of sixteen, {4 data, flag, 4 data, flag}: a
//           line is there when both its flags are the chunk's number, so data and flag are one
//           flight and no fence is needed. Half the bandwidth at the least latency. (NCCL's LL;
//           lines are written and read in two halves of eight bytes, which no machine tears.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::executor {

enum class Protocol : std::uint8_t { kSimple, kLl, kLl128 };
inline constexpr int kNumProtocols = 3;

/// "simple", "ll", "ll128".
constexpr const char* name(Protocol protocol) {
  constexpr const char* kNames[] = {"simple", "ll", "ll128"};
  return kNames[static_cast<std::size_t>(protocol)];
}

}  // namespace ropewalk::executor
