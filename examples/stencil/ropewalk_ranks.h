// A Ropewalk communicator as the program's ranks, and what its forms share.
#pragma once

#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>

#include <cstddef>

#include "solver.h"

namespace stencil {

/// Ends the program where `result` is an error.
void check(rwResult_t result);

class RopewalkRanks : public Ranks {
 public:
  RopewalkRanks();
  ~RopewalkRanks() override;
  RopewalkRanks(const RopewalkRanks&) = delete;
  RopewalkRanks& operator=(const RopewalkRanks&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void barrier() override { check(rwBarrier(comm_)); }
  void gather(const double* mine, std::size_t count, double* all) override;
  [[nodiscard]] rwComm_t comm() const { return comm_; }

 private:
  rwComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 0;
};

/// Where halos lie in each rank's part of the window: two sets in turn, each with one for each
/// side.
///
/// Two are enough, and no rank says that it has read one. A neighbour that sends the edges of
/// iteration k + 2 has this rank's of iteration k + 1, which left when those of k had been read.
class HaloLayout {
 public:
  explicit HaloLayout(const Domain& domain)
      : bytes_(static_cast<std::size_t>(domain.longest_edge()) * sizeof(double)) {}
  [[nodiscard]] std::size_t offset(int set, Side side) const {
    return (static_cast<std::size_t>(set) * kSides.size() + static_cast<std::size_t>(side)) *
           bytes_;
  }
  [[nodiscard]] std::size_t total() const { return 2 * kSides.size() * bytes_; }

 private:
  std::size_t bytes_;
};

/// Iterates on a GPU, in the form "stream", "stream_batch", "kernel", "graph" or "synchronous".
std::unique_ptr<Solver> make_gpu_solver(const std::string& form, RopewalkRanks& ranks,
                                        const Domain& domain, int at_once);

}  // namespace stencil
