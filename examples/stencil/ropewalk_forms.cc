// The forms over Ropewalk's windows: "host" and "batch", on host memory; those on a GPU where the
// program is built with CUDA (gpu_forms.cu).
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "host_solver.h"
#include "ropewalk_ranks.h"

namespace stencil {

void check(rwResult_t result) {
  if (result == rwSuccess) return;
  std::fprintf(stderr, "stencil: %s: %s\n", rwGetErrorString(result), rwGetLastError(nullptr));
  std::exit(EXIT_FAILURE);
}

RopewalkRanks::RopewalkRanks() {
  check(rwCommInitEnv(&comm_));
  check(rwCommUserRank(comm_, &rank_));
  check(rwCommCount(comm_, &size_));
}

RopewalkRanks::~RopewalkRanks() { check(rwCommDestroy(comm_)); }

void RopewalkRanks::gather(const double* mine, std::size_t count, double* all) {
  check(rwGather(mine, all, count, rwFloat64, 0, comm_, nullptr, nullptr));
}

namespace {

// Each rank puts its edges straight into its neighbours' windows, and signals; a neighbour waits
// for the signal when it needs the edge.
class WindowSolver : public HostSolver {
 public:
  WindowSolver(RopewalkRanks& ranks, const Domain& domain) : HostSolver(domain), layout_(domain) {
    check(rwWindowCreate(ranks.comm(), layout_.total(), 1, &window_));
    void* memory = nullptr;
    check(rwWindowMemory(window_, ranks.rank(), &memory, nullptr));
    halos_ = static_cast<const std::byte*>(memory);
    for (const Side side : kSides) {
      edges_[side].resize(static_cast<std::size_t>(domain.edge(side)));
    }
  }
  ~WindowSolver() override { check(rwWindowFree(window_)); }
  WindowSolver(const WindowSolver&) = delete;
  WindowSolver& operator=(const WindowSolver&) = delete;

 protected:
  void start(const Field& field) override {
    pack(field);
    for (const Side side : kSides) {
      const int peer = domain().neighbor(side);
      if (peer < 0) continue;
      check(rwPutSignal(edges_[side].data(), edge_bytes(side), peer,
                        layout_.offset(set_, opposite(side)), 0, window_, nullptr, nullptr));
    }
  }

  void finish(Field& field) override {
    for (const Side side : kSides) {
      const int peer = domain().neighbor(side);
      if (peer >= 0) check(rwWaitSignal(peer, 0, 1, window_, nullptr, nullptr));
    }
    unpack(field);
  }

  void pack(const Field& field) {
    for (const Side side : kSides) {
      if (domain().neighbor(side) >= 0) field.pack(side, edges_[side].data());
    }
  }

  void unpack(Field& field) {
    for (const Side side : kSides) {
      if (domain().neighbor(side) < 0) continue;
      field.unpack(side, reinterpret_cast<const double*>(halos_ + layout_.offset(set_, side)));
    }
    set_ = 1 - set_;
  }

  [[nodiscard]] std::size_t edge_bytes(Side side) const {
    return edges_[side].size() * sizeof(double);
  }

  HaloLayout layout_;
  rwMessageWindow_t window_ = nullptr;
  const std::byte* halos_ = nullptr;
  std::array<std::vector<double>, 4> edges_;
  int set_ = 0;
};

// The same, where the whole exchange was prepared: one call starts it, and one ends it.
class BatchSolver : public WindowSolver {
 public:
  BatchSolver(RopewalkRanks& ranks, const Domain& domain) : WindowSolver(ranks, domain) {
    for (int set = 0; set < 2; ++set) {
      check(rwBatchCreate(ranks.comm(), &batches_[set]));
      for (const Side side : kSides) {
        const int peer = domain.neighbor(side);
        if (peer < 0) continue;
        check(rwBatchPut(batches_[set], edges_[side].data(), edge_bytes(side), peer,
                         layout_.offset(set, opposite(side)), window_));
        check(rwBatchSignal(batches_[set], peer, 0, 1, window_));
      }
      for (const Side side : kSides) {
        const int peer = domain.neighbor(side);
        if (peer >= 0) check(rwBatchWaitSignal(batches_[set], peer, 0, 1, window_));
      }
    }
  }
  ~BatchSolver() override {
    for (rwBatch_t batch : batches_) check(rwBatchFree(batch));
  }
  BatchSolver(const BatchSolver&) = delete;
  BatchSolver& operator=(const BatchSolver&) = delete;

 protected:
  void start(const Field& field) override {
    pack(field);
    check(rwBatchLaunch(batches_[set_], nullptr, &launched_));
  }

  void finish(Field& field) override {
    check(rwRequestWait(launched_, -1));
    check(rwRequestFree(launched_));
    unpack(field);
  }

 private:
  std::array<rwBatch_t, 2> batches_{};
  rwRequest_t launched_ = nullptr;
};

}  // namespace

std::unique_ptr<Ranks> join(int* /*argc*/, char*** /*argv*/) {
  return std::make_unique<RopewalkRanks>();
}

std::vector<std::string> forms() {
  std::vector<std::string> all{"host", "batch"};
#if defined(STENCIL_CUDA)
  all.insert(all.end(), {"stream", "stream_batch", "kernel", "graph", "synchronous"});
#endif
  return all;
}

bool has_many_at_once(const std::string& form) {
  return form == "kernel" || form == "graph" || form == "stream_batch";
}

std::unique_ptr<Solver> make_solver(const std::string& form, Ranks& ranks, const Domain& domain,
                                    [[maybe_unused]] int at_once) {
  auto& its = static_cast<RopewalkRanks&>(ranks);
  if (form == "host") return std::make_unique<WindowSolver>(its, domain);
  if (form == "batch") return std::make_unique<BatchSolver>(its, domain);
#if defined(STENCIL_CUDA)
  return make_gpu_solver(form, its, domain, at_once);
#else
  return nullptr;
#endif
}

}  // namespace stencil
