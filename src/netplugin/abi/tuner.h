// NCCL's tuner interface, versions 3 to 6 (NCCL 2.22 and later): objects called ncclTunerPlugin_vN,
// which NCCL looks for in its network plugin where no other library has them.
//
// getCollInfo is given NCCL's table of times, one flat array float[algorithms][protocols] in
// microseconds with -1 for what cannot be, though its type says pointers; the smallest time wins.
// `channels` comes in as 0, and what is left there limits the channels. An error from it fails the
// collective. All ranks must answer alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "netplugin/abi/common.h"

namespace ropewalk::netplugin::abi {

inline constexpr int kProtocolLl = 0;
inline constexpr int kProtocolLl128 = 1;
inline constexpr int kProtocolSimple = 2;

struct TunerV3 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Logger logger, void** context);
  Result (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                          float** times, int algorithms, int protocols, int* channels);
  Result (*destroy)(void* context);
};

struct TunerV4 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Logger logger, void** context);
  Result (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                          float** times, int algorithms, int protocols, int registered,
                          int* channels);
  Result (*destroy)(void* context);
};

struct TunerV5 {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, std::size_t ranks, std::size_t nodes,
                 Logger logger, void* nvlink_domains, void* constants);
  Result (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                          float** times, int algorithms, int protocols, int registered,
                          int* channels);
  Result (*finalize)(void* context);
};

struct TunerV6 {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, std::size_t ranks, std::size_t nodes,
                 Logger logger, void* nvlink_domains, void* constants);
  Result (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                          float** times, int algorithms, int protocols, int registered,
                          int* channels);
  Result (*finalize)(void* context);
  /// May be null.
  Result (*get_chunk_size)(void* context, int collective, std::size_t bytes, int algorithm,
                           int protocol, int channels, std::size_t* chunk_bytes);
};

}  // namespace ropewalk::netplugin::abi
