// The form over MPI, to compare with: nonblocking receives and sends on host memory.
// The C API alone: the C++ one is no part of MPI any more.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "host_solver.h"

namespace stencil {
namespace {

class MpiRanks : public Ranks {
 public:
  MpiRanks(int* argc, char*** argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiRanks() override { MPI_Finalize(); }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void gather(const double* mine, std::size_t count, double* all) override {
    const int each = static_cast<int>(count);
    MPI_Gather(mine, each, MPI_DOUBLE, all, each, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  int size_ = 0;
};

class MpiSolver : public HostSolver {
 public:
  explicit MpiSolver(const Domain& the_domain) : HostSolver(the_domain) {
    for (const Side side : kSides) {
      edges_[side].resize(static_cast<std::size_t>(the_domain.edge(side)));
      halos_[side].resize(edges_[side].size());
    }
  }

 protected:
  // The tag says at which side of its owner the edge is.
  void start(const Field& field) override {
    for (const Side side : kSides) {
      const int peer = domain().neighbor(side);
      requests_[side] = requests_[4 + side] = MPI_REQUEST_NULL;
      if (peer < 0) continue;
      const int count = domain().edge(side);
      MPI_Irecv(halos_[side].data(), count, MPI_DOUBLE, peer, opposite(side), MPI_COMM_WORLD,
                &requests_[side]);
      field.pack(side, edges_[side].data());
      MPI_Isend(edges_[side].data(), count, MPI_DOUBLE, peer, side, MPI_COMM_WORLD,
                &requests_[4 + side]);
    }
  }

  void finish(Field& field) override {
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    for (const Side side : kSides) {
      if (domain().neighbor(side) >= 0) field.unpack(side, halos_[side].data());
    }
  }

 private:
  std::array<std::vector<double>, 4> edges_;
  std::array<std::vector<double>, 4> halos_;
  std::array<MPI_Request, 8> requests_{};
};

}  // namespace

std::unique_ptr<Ranks> join(int* argc, char*** argv) {
  return std::make_unique<MpiRanks>(argc, argv);
}

std::vector<std::string> forms() { return {"mpi"}; }

bool has_many_at_once(const std::string& /*form*/) { return false; }

std::unique_ptr<Solver> make_solver(const std::string& /*form*/, Ranks& /*ranks*/,
                                    const Domain& domain, int /*at_once*/) {
  return std::make_unique<MpiSolver>(domain);
}

}  // namespace stencil
