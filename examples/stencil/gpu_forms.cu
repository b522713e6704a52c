// The forms on a GPU: everything is in the order of a stream, and the CPU waits for none of it.
//
// "stream": the puts, signals and waits of windows take the stream. "graph": two iterations, one
// for each set of halos, are captured once and launched as one.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
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

class GpuSolver : public Solver {
 public:
  GpuSolver(RopewalkRanks& ranks, const Domain& domain, bool graph)
      : domain_(domain), layout_(domain), by_graph_(graph) {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count));
    check_cuda(cudaSetDevice(ranks.rank() % count));
    check(rwCommAttachDevice(ranks.comm(), ranks.rank() % count));
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
    }
    check_cuda(cudaMalloc(&packed_, layout_.total()));
    check_cuda(cudaMalloc(&halos_, layout_.total()));
    check(rwWindowRegister(ranks.comm(), halos_, layout_.total(), 1, &window_));
  }

  ~GpuSolver() override {
    check(rwWindowFree(window_));
    if (graph_ != nullptr) check_cuda(cudaGraphExecDestroy(graph_));
    for (const DeviceField& field : {now_, next_}) check_cuda(cudaFree(first(field)));
    check_cuda(cudaFree(packed_));
    check_cuda(cudaFree(halos_));
    check_cuda(cudaStreamDestroy(stream_));
  }
  GpuSolver(const GpuSolver&) = delete;
  GpuSolver& operator=(const GpuSolver&) = delete;

  void load(const Field& field) override {
    for (const DeviceField& mine : {now_, next_}) {
      check_cuda(cudaMemcpy(first(mine), field.cells().data(),
                            field.cells().size() * sizeof(double), cudaMemcpyHostToDevice));
    }
  }

  void store(Field& field) override {
    check_cuda(cudaMemcpy(field.cells().data(), first(now_), field.cells().size() * sizeof(double),
                          cudaMemcpyDeviceToHost));
  }

  void run(int iterations) override {
    int k = 0;
    if (by_graph_) {
      // The graph has the sets of halos in this order.
      for (; set_ != 0 && k < iterations; ++k) iterate();
      if (graph_ == nullptr && k + 1 < iterations) capture();
      for (; k + 1 < iterations; k += 2) check_cuda(cudaGraphLaunch(graph_, stream_));
    }
    for (; k < iterations; ++k) iterate();
    check_cuda(cudaStreamSynchronize(stream_));
  }

 private:
  double* first(const DeviceField& field) const { return field.cells - (domain_.nx() + 3); }

  void iterate() {
    auto* const stream = reinterpret_cast<rwStream_t>(stream_);
    const dim3 along(static_cast<unsigned>((edges_.longest + 127) / 128), 4);
    const dim3 block(32, 8);
    const dim3 blocks(static_cast<unsigned>((domain_.nx() + 31) / 32),
                      static_cast<unsigned>((domain_.ny() + 7) / 8));
    // As many as the halos: the source of a put may be read until a later iteration's wait.
    double* const packed = packed_ + 4 * set_ * edges_.longest;
    const double* const halos = halos_ + 4 * set_ * edges_.longest;
    pack_edges<<<along, 128, 0, stream_>>>(now_, edges_, packed);
    for (const Side side : kSides) {
      const int peer = domain_.neighbor(side);
      if (peer < 0) continue;
      check(rwPutSignal(packed + side * edges_.longest,
                        static_cast<std::size_t>(domain_.edge(side)) * sizeof(double), peer,
                        layout_.offset(set_, opposite(side)), 0, window_, stream, nullptr));
    }
    relax_cells<<<blocks, block, 0, stream_>>>(now_, next_, true);
    for (const Side side : kSides) {
      const int peer = domain_.neighbor(side);
      if (peer >= 0) check(rwWaitSignal(peer, 0, 1, window_, stream, nullptr));
    }
    unpack_edges<<<along, 128, 0, stream_>>>(now_, edges_, halos);
    relax_cells<<<blocks, block, 0, stream_>>>(now_, next_, false);
    check_cuda(cudaGetLastError());
    std::swap(now_, next_);
    set_ = 1 - set_;
  }

  void capture() {
    cudaGraph_t captured = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    iterate();
    iterate();
    check_cuda(cudaStreamEndCapture(stream_, &captured));
    check_cuda(cudaGraphInstantiate(&graph_, captured, 0));
    check_cuda(cudaGraphDestroy(captured));
  }

  Domain domain_;
  HaloLayout layout_;
  bool by_graph_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  DeviceField now_;
  DeviceField next_;
  Edges edges_{};
  double* packed_ = nullptr;
  double* halos_ = nullptr;
  rwMessageWindow_t window_ = nullptr;
  int set_ = 0;
};

}  // namespace

std::unique_ptr<Solver> make_gpu_solver(const std::string& form, RopewalkRanks& ranks,
                                        const Domain& domain) {
  return std::make_unique<GpuSolver>(ranks, domain, form == "graph");
}

}  // namespace stencil
