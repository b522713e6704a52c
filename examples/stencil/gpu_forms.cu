// The forms on a GPU: everything is in the order of a stream, and the CPU waits for none of it.
//
// "stream": the puts, signals and waits of windows take the stream. "stream_batch": the same as two
// prepared batches, each of them one kernel. "graph": an iteration is captured once for
// each set of halos, and launched. "kernel": four blocks of the kernel that computes the cells
// inside exchange the edges meanwhile, each with one neighbour. "synchronous", to compare with: the
// CPU waits for the stream, puts the edges, signals, and waits for its neighbours'.
//
// Graphs, batches and kernels may be captured for many iterations (--at-once), so that the CPU has
// one call for all of them, and sleeps until they are done. A graph of kernels alone costs the CPU
// the least.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ropewalk/device.cuh>
#include <utility>

#include "ropewalk_ranks.h"

namespace stencil {
namespace {

void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "stencil: %s\n", cudaGetErrorString(error));
  std::exit(EXIT_FAILURE);
}

// A block with its frame, in GPU memory.
struct DeviceField {
  double* cells = nullptr;  // of x = 0, y = 0
  int nx = 0;
  int ny = 0;

  __host__ __device__ double& at(int x, int y) const {
    return cells[static_cast<long long>(y) * (nx + 2) + x];
  }
  // The k-th cell of the edge on `side`, `outside` of it (1: in the frame).
  __host__ __device__ double& edge(int side, int k, int outside) const {
    switch (side) {
      case kLeft: return at(-outside, k);
      case kRight: return at(nx - 1 + outside, k);
      case kUp: return at(k, -outside);
      default: return at(k, ny - 1 + outside);
    }
  }
};

// Which sides have a neighbour; edges lie `longest` apart.
struct Edges {
  bool present[4];
  int count[4];
  int longest;
};

__global__ void pack_edges(DeviceField field, Edges edges, double* out) {
  const int k = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int side = static_cast<int>(blockIdx.y);
  if (!edges.present[side] || k >= edges.count[side]) return;
  out[side * edges.longest + k] = field.edge(side, k, 0);
}

__global__ void unpack_edges(DeviceField field, Edges edges, const double* halos) {
  const int k = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int side = static_cast<int>(blockIdx.y);
  if (!edges.present[side] || k >= edges.count[side]) return;
  field.edge(side, k, 1) = halos[side * edges.longest + k];
}

// The cells inside, or those at the edges.
__global__ void relax_cells(DeviceField now, DeviceField next, bool inside) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x >= now.nx || y >= now.ny) return;
  const bool at_edge = x == 0 || y == 0 || x == now.nx - 1 || y == now.ny - 1;
  if (at_edge == inside) return;
  next.at(x, y) =
      0.25 * ((now.at(x, y - 1) + now.at(x, y + 1)) + (now.at(x - 1, y) + now.at(x + 1, y)));
}

struct Neighbors {
  int rank[4];            // -1: the border
  std::size_t offset[4];  // where this rank's edge belongs at that one
};

// Blocks 0 to 3: an edge to the neighbour on that side, and its edge into the frame. The others:
// the cells inside, which need neither.
__global__ void exchange_and_relax_inside(DeviceField now, DeviceField next, Edges edges,
                                          Neighbors neighbors, rwDeviceWindow window,
                                          double* packed, const double* halos) {
  namespace device = ropewalk::device;
  const int side = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  if (side < 4) {
    if (!edges.present[side]) return;
    double* const mine = packed + side * edges.longest;
    const int count = edges.count[side];
    for (int k = thread; k < count; k += threads) mine[k] = now.edge(side, k, 0);
    __syncthreads();
    const int peer = neighbors.rank[side];
    device::put_signal(device::Block{}, window, peer, neighbors.offset[side], mine,
                       static_cast<std::size_t>(count) * sizeof(double));
    // After an error the host tells; the cells are wrong then.
    if (device::wait_signal(device::Block{}, window, peer) != device::Status::kDone) return;
    const double* const theirs = halos + side * edges.longest;
    for (int k = thread; k < count; k += threads) now.edge(side, k, 1) = theirs[k];
    return;
  }
  if (now.nx < 3 || now.ny < 3) return;
  const long long inside = static_cast<long long>(now.nx - 2) * (now.ny - 2);
  const long long step = static_cast<long long>(gridDim.x - 4) * threads;
  for (long long k = static_cast<long long>(side - 4) * threads + thread; k < inside; k += step) {
    const int x = 1 + static_cast<int>(k % (now.nx - 2));
    const int y = 1 + static_cast<int>(k / (now.nx - 2));
    next.at(x, y) =
        0.25 * ((now.at(x, y - 1) + now.at(x, y + 1)) + (now.at(x - 1, y) + now.at(x + 1, y)));
  }
}

enum class Form { kStream, kStreamBatch, kGraph, kKernel, kSynchronous };

class GpuSolver : public Solver {
 public:
  GpuSolver(RopewalkRanks& ranks, const Domain& domain, Form form, int at_once)
      : domain_(domain), layout_(domain), form_(form), at_once_(at_once), comm_(ranks.comm()) {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count));
    check_cuda(cudaSetDevice(ranks.rank() % count));
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const std::size_t cells =
        (static_cast<std::size_t>(domain.nx()) + 2) * (static_cast<std::size_t>(domain.ny()) + 2);
    for (DeviceField* field : {&now_, &next_}) {
      double* memory = nullptr;
      check_cuda(cudaMalloc(&memory, cells * sizeof(double)));
      *field = {memory + domain.nx() + 3, domain.nx(), domain.ny()};
    }
    edges_.longest = domain.longest_edge();
    for (int side = 0; side < 4; ++side) {
      edges_.present[side] = domain.neighbor(static_cast<Side>(side)) >= 0;
      edges_.count[side] = domain.edge(static_cast<Side>(side));
      neighbors_.rank[side] = domain.neighbor(static_cast<Side>(side));
    }
    check_cuda(cudaMalloc(&packed_, layout_.total()));
    check_cuda(cudaMalloc(&halos_, layout_.total()));
    check(rwWindowRegister(ranks.comm(), halos_, layout_.total(), 1, &window_));
    if (form == Form::kKernel) check(rwWindowDevice(window_, &on_gpu_));
    if (form == Form::kStreamBatch) prepare();
    for (cudaEvent_t& event : launched_) {
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
    }
  }

  ~GpuSolver() override {
    for (cudaEvent_t event : launched_) check_cuda(cudaEventDestroy(event));
    for (rwBatch_t batch : sends_) check(rwBatchFree(batch));
    check(rwBatchFree(waits_));
    if (many_ != nullptr) check_cuda(cudaGraphExecDestroy(many_));
    for (cudaGraphExec_t graph : graphs_) {
      if (graph != nullptr) check_cuda(cudaGraphExecDestroy(graph));
    }
    check(rwWindowFree(window_));
    for (const DeviceField& field : {now_, next_}) check_cuda(cudaFree(first(field)));
    check_cuda(cudaFree(packed_));
    check_cuda(cudaFree(halos_));
    check_cuda(cudaStreamDestroy(stream_));
  }
  GpuSolver(const GpuSolver&) = delete;
  GpuSolver& operator=(const GpuSolver&) = delete;

  // On the stream of the kernels: cudaMemcpy may return before pageable memory has arrived.
  void load(const Field& field) override {
    for (const DeviceField& mine : {now_, next_}) {
      check_cuda(cudaMemcpyAsync(first(mine), field.cells().data(),
                                 field.cells().size() * sizeof(double), cudaMemcpyHostToDevice,
                                 stream_));
    }
    check_cuda(cudaStreamSynchronize(stream_));
  }

  void store(Field& field) override {
    check_cuda(cudaMemcpy(field.cells().data(), first(now_), field.cells().size() * sizeof(double),
                          cudaMemcpyDeviceToHost));
  }

  void run(int iterations) override {
    int done = 0;
    // They begin with the first set of halos, and end with it.
    if (at_once_ > 1 && set_ == 0) {
      for (; iterations - done >= at_once_; done += at_once_) launch_many();
    }
    for (; done < iterations; ++done) {
      switch (form_) {
        case Form::kStreamBatch:
          // What was captured counts on the GPU, and so must all that follows.
          if (at_once_ > 1) {
            launch_captured();
          } else {
            enqueue();
          }
          break;
        case Form::kStream:
        case Form::kSynchronous: enqueue(); break;
        case Form::kGraph: launch_captured(); break;
        case Form::kKernel: launch(); break;
      }
      turn();
    }
    if (at_once_ > 1) {
      record();
      for (cudaEvent_t event : launched_) check_cuda(cudaEventSynchronize(event));
    }
    check_cuda(cudaStreamSynchronize(stream_));
    rwResult_t error = rwSuccess;
    check(rwCommGetAsyncError(comm_, &error));
    check(error);
  }

 private:
  double* first(const DeviceField& field) const { return field.cells - (domain_.nx() + 3); }

  void turn() {
    std::swap(now_, next_);
    set_ = 1 - set_;
  }

  // The next of two events, which were made so that who waits for them sleeps.
  void record() {
    last_ = 1 - last_;
    check_cuda(cudaEventRecord(launched_[last_], stream_));
  }

  void launch_captured() {
    if (graphs_[set_] == nullptr) graphs_[set_] = capture(1);
    check_cuda(cudaGraphLaunch(graphs_[set_], stream_));
  }

  void launch_many() {
    if (many_ == nullptr) many_ = capture(at_once_);
    // Two at most are on their way: a launch that finds CUDA's queues full would keep the CPU busy.
    check_cuda(cudaEventSynchronize(launched_[1 - last_]));
    check_cuda(cudaGraphLaunch(many_, stream_));
    record();
  }

  // An exchange in two parts, between which the cells inside are computed.
  void prepare() {
    check(rwBatchCreate(comm_, &waits_));
    for (int set = 0; set < 2; ++set) {
      check(rwBatchCreate(comm_, &sends_[set]));
      for (const Side side : kSides) {
        const int peer = domain_.neighbor(side);
        if (peer < 0) continue;
        check(rwBatchPut(sends_[set], packed(set) + side * edges_.longest, edge_bytes(side), peer,
                         layout_.offset(set, opposite(side)), window_));
        check(rwBatchSignal(sends_[set], peer, 0, 1, window_));
        if (set == 0) check(rwBatchWaitSignal(waits_, peer, 0, 1, window_));
      }
    }
  }

  // As many as the halos: the source of a put may be read until a later iteration's wait.
  double* packed(int set) const { return packed_ + 4 * set * edges_.longest; }
  std::size_t edge_bytes(Side side) const {
    return static_cast<std::size_t>(domain_.edge(side)) * sizeof(double);
  }

  // One iteration, from now_ to next_ with the set of halos at hand.
  void enqueue() {
    // The host's own calls take none.
    auto* const stream =
        form_ == Form::kSynchronous ? nullptr : reinterpret_cast<rwStream_t>(stream_);
    const dim3 along(static_cast<unsigned>((edges_.longest + 127) / 128), 4);
    const dim3 block(32, 8);
    const dim3 blocks(static_cast<unsigned>((domain_.nx() + 31) / 32),
                      static_cast<unsigned>((domain_.ny() + 7) / 8));
    const double* const halos = halos_ + 4 * set_ * edges_.longest;
    pack_edges<<<along, 128, 0, stream_>>>(now_, edges_, packed(set_));
    if (form_ == Form::kSynchronous) check_cuda(cudaStreamSynchronize(stream_));
    if (form_ == Form::kStreamBatch) {
      check(rwBatchLaunch(sends_[set_], stream, nullptr));
    } else {
      for (const Side side : kSides) {
        const int peer = domain_.neighbor(side);
        if (peer < 0) continue;
        check(rwPutSignal(packed(set_) + side * edges_.longest, edge_bytes(side), peer,
                          layout_.offset(set_, opposite(side)), 0, window_, stream, nullptr));
      }
    }
    relax_cells<<<blocks, block, 0, stream_>>>(now_, next_, true);
    if (form_ == Form::kStreamBatch) {
      check(rwBatchLaunch(waits_, stream, nullptr));
    } else {
      for (const Side side : kSides) {
        const int peer = domain_.neighbor(side);
        if (peer >= 0) check(rwWaitSignal(peer, 0, 1, window_, stream, nullptr));
      }
    }
    unpack_edges<<<along, 128, 0, stream_>>>(now_, edges_, halos);
    relax_cells<<<blocks, block, 0, stream_>>>(now_, next_, false);
    check_cuda(cudaGetLastError());
  }

  // The same by two kernels.
  void launch() {
    for (const Side side : kSides) {
      neighbors_.offset[static_cast<int>(side)] = layout_.offset(set_, opposite(side));
    }
    const long long inside = static_cast<long long>(domain_.nx()) * domain_.ny();
    const auto others = static_cast<unsigned>(std::min((inside + 255) / 256, 512LL));
    exchange_and_relax_inside<<<4 + others, 256, 0, stream_>>>(
        now_, next_, edges_, neighbors_, on_gpu_, packed(set_), halos_ + 4 * set_ * edges_.longest);
    const dim3 block(32, 8);
    const dim3 blocks(static_cast<unsigned>((domain_.nx() + 31) / 32),
                      static_cast<unsigned>((domain_.ny() + 7) / 8));
    relax_cells<<<blocks, block, 0, stream_>>>(now_, next_, false);
    check_cuda(cudaGetLastError());
  }

  // From the fields and the halos at hand. Those of several iterations are the same afterwards.
  cudaGraphExec_t capture(int iterations) {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t made = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int k = 0; k < iterations; ++k) {
      if (form_ == Form::kKernel) {
        launch();
      } else {
        enqueue();
      }
      if (iterations > 1) turn();
    }
    check_cuda(cudaStreamEndCapture(stream_, &captured));
    check_cuda(cudaGraphInstantiate(&made, captured, 0));
    check_cuda(cudaGraphDestroy(captured));
    return made;
  }

  Domain domain_;
  HaloLayout layout_;
  Form form_;
  int at_once_;
  rwComm_t comm_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t launched_[2] = {};
  int last_ = 0;
  cudaGraphExec_t many_ = nullptr;  // of at_once_ iterations
  rwBatch_t sends_[2] = {};         // by set of halos
  rwBatch_t waits_ = nullptr;
  cudaGraphExec_t graphs_[2] = {};  // by set of halos, and so by which field is now_
  DeviceField now_;
  DeviceField next_;
  Edges edges_{};
  Neighbors neighbors_{};
  rwDeviceWindow on_gpu_{};
  double* packed_ = nullptr;
  double* halos_ = nullptr;
  rwMessageWindow_t window_ = nullptr;
  int set_ = 0;
};

}  // namespace

std::unique_ptr<Solver> make_gpu_solver(const std::string& form, RopewalkRanks& ranks,
                                        const Domain& domain, int at_once) {
  const auto make = [&](Form chosen) {
    return std::make_unique<GpuSolver>(ranks, domain, chosen, at_once);
  };
  if (form == "stream_batch") return make(Form::kStreamBatch);
  if (form == "graph") return make(Form::kGraph);
  if (form == "kernel") return make(Form::kKernel);
  if (form == "synchronous") return make(Form::kSynchronous);
  return make(Form::kStream);
}

}  // namespace stencil
