// The operations: how each is called, what goes in, and what must come out.
//
// `bytes` as nccl-tests counts them: the larger of the two buffers, over all ranks. Float32
// throughout; inputs are small integers, so that every order of adding gives the same bits.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "nccl_functions.h"

enum class Operation {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSendRecv,
  kSend  // each rank of even number to the next one, if there is one
};

inline Operation operation_of(const char* name) {
  const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                               "reduce",     "all_to_all", "sendrecv",       "send"};
  for (int i = 0; i < 8; ++i) {
    if (std::strcmp(name, names[i]) == 0) return static_cast<Operation>(i);
  }
  throw std::runtime_error(std::string("unknown operation ") + name);
}

/// Whether `bytes` are for all ranks together, each one having a part.
inline bool in_parts(Operation operation) {
  return operation == Operation::kAllGather || operation == Operation::kReduceScatter ||
         operation == Operation::kAllToAll;
}

/// Calls it for one rank; the caller opens a group around all ranks of a thread. `count` is of one
/// rank's part, where there are parts.
inline void call(const NcclFunctions& nccl, Operation operation, const float* in, float* out,
                 std::size_t count, int rank, int ranks, ncclComm_t comm, ncclStream_t stream) {
  switch (operation) {
    case Operation::kAllReduce:
      nccl.check(nccl.AllReduce(in, out, count, ncclFloat32, ncclSum, comm, stream), "AllReduce");
      break;
    case Operation::kAllGather:
      nccl.check(nccl.AllGather(in, out, count, ncclFloat32, comm, stream), "AllGather");
      break;
    case Operation::kReduceScatter:
      nccl.check(nccl.ReduceScatter(in, out, count, ncclFloat32, ncclSum, comm, stream),
                 "ReduceScatter");
      break;
    case Operation::kBroadcast:
      nccl.check(nccl.Broadcast(in, out, count, ncclFloat32, 0, comm, stream), "Broadcast");
      break;
    case Operation::kReduce:
      nccl.check(nccl.Reduce(in, out, count, ncclFloat32, ncclSum, 0, comm, stream), "Reduce");
      break;
    case Operation::kAllToAll:
      if (nccl.AlltoAll == nullptr) throw std::runtime_error("this NCCL has no ncclAlltoAll");
      nccl.check(nccl.AlltoAll(in, out, count, ncclFloat32, comm, stream), "AlltoAll");
      break;
    case Operation::kSendRecv:
      nccl.check(nccl.GroupStart(), "GroupStart");
      nccl.check(nccl.Send(in, count, ncclFloat32, (rank + 1) % ranks, comm, stream), "Send");
      nccl.check(nccl.Recv(out, count, ncclFloat32, (rank + ranks - 1) % ranks, comm, stream),
                 "Recv");
      nccl.check(nccl.GroupEnd(), "GroupEnd");
      break;
    case Operation::kSend:
      if (rank % 2 == 0 && rank + 1 < ranks) {
        nccl.check(nccl.Send(in, count, ncclFloat32, rank + 1, comm, stream), "Send");
      } else if (rank % 2 == 1) {
        nccl.check(nccl.Recv(out, count, ncclFloat32, rank - 1, comm, stream), "Recv");
      }
      break;
  }
}

__host__ __device__ inline float input_of(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13 + i / 1021) % 31);
}

__global__ void fill(float* in, std::size_t count, int rank) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    in[i] = input_of(rank, i);
  }
}

__device__ inline float sum_of(int ranks, std::size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += input_of(r, i);
  return sum;
}

/// Counts the elements of rank `rank`'s output that are wrong.
__global__ void count_wrong(Operation operation, const float* out, std::size_t length,
                            std::size_t count, int rank, int ranks, unsigned long long* wrong) {
  unsigned long long own = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < length;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto mine = static_cast<std::size_t>(rank) * count;
    float right = 0;
    switch (operation) {
      case Operation::kAllReduce:
      case Operation::kReduce: right = sum_of(ranks, i); break;
      case Operation::kAllGather: right = input_of(static_cast<int>(i / count), i % count); break;
      case Operation::kReduceScatter: right = sum_of(ranks, mine + i); break;
      case Operation::kBroadcast: right = input_of(0, i); break;
      case Operation::kAllToAll:
        right = input_of(static_cast<int>(i / count), mine + i % count);
        break;
      case Operation::kSendRecv: right = input_of((rank + ranks - 1) % ranks, i); break;
      case Operation::kSend: right = input_of(rank - 1, i); break;
    }
    own += out[i] != right ? 1 : 0;
  }
  if (own != 0) atomicAdd(wrong, own);
}

/// Elements of one rank's output; 0 where it has none.
inline std::size_t output_length(Operation operation, std::size_t count, int rank, int ranks) {
  switch (operation) {
    case Operation::kAllGather:
    case Operation::kAllToAll: return count * static_cast<std::size_t>(ranks);
    case Operation::kReduce: return rank == 0 ? count : 0;
    case Operation::kSend: return rank % 2 == 1 ? count : 0;
    default: return count;
  }
}
