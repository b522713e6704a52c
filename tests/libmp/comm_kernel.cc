/* The COMM layer with kernels, case by case: comm_kernel CASE. Kernels are threads of the host.
 * Each rank prints "CASE: passed" at the end. */
#define OMPI_SKIP_MPICXX 1 /* MPI's bindings for C++ are not used, and not free of warnings */
#define MPICH_SKIP_MPICXX 1
#include <comm.h>
#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cases.h"

namespace {

namespace kernel = mp::device::mlx5;

enum { kBytes = 5000, kSteps = 150 };

int rank, size;

void begin() {
#ifdef MPI_VERSION
  OK(comm_init(MPI_COMM_WORLD, gpu_of_tests()));
#else
  OK(mp_init_env(nullptr, 0, MP_INIT_DEFAULT, gpu_of_tests()));
  OK(comm_begin());
#endif
  rank = mp_rank();
  size = mp_size();
}

/* What a step of a stencil does in one kernel: pack, wait until the receivers are ready, send, wait
 * for what comes, look at it. */
void run_step(comm_dev_descs& descs, unsigned char* out, unsigned char* in, int step) {
  EXPECT(descs.n_ready == size && descs.n_tx == size && descs.n_wait == 2 * size);
  for (int peer = 0; peer < size; ++peer) {
    fill(out + peer * kBytes, kBytes, rank, step + peer);
    EXPECT(kernel::wait_geq(descs.ready[peer]) == 0);
    EXPECT(kernel::send(descs.tx[peer]) == 0);
  }
  for (int peer = 0; peer < size; ++peer) {
    EXPECT(kernel::wait(descs.wait[peer]) == 0);
    EXPECT(wrong(in + peer * kBytes, kBytes, peer, step + rank) == 0);
    EXPECT(kernel::signal(descs.wait[peer]) == 0);
  }
  for (int k = size; k < 2 * size; ++k) {
    EXPECT(kernel::wait(descs.wait[k]) == 0 && kernel::signal(descs.wait[k]) == 0);
  }
}

/* The CPU prepares a step while the kernel of the step before runs. More steps than sets. */
void exchange() {
  std::vector<unsigned char> out(2U * 64 * kBytes), in(2U * 64 * kBytes);
  comm_reg_t out_reg = nullptr, in_reg = nullptr;
  OK(comm_register(out.data(), out.size(), &out_reg));
  OK(comm_register(in.data(), in.size(), &in_reg));
  std::thread before;
  for (int step = 0; step < kSteps; ++step) {
    unsigned char* const sent = out.data() + (step % 2) * 64 * kBytes;
    unsigned char* const got = in.data() + (step % 2) * 64 * kBytes;
    std::vector<comm_request_t> receives(64), sends(64);
    comm_request_t ready = nullptr;
    for (int peer = 0; peer < size; ++peer) {
      const auto at = static_cast<size_t>(peer);
      OK(comm_irecv_bytes(got + peer * kBytes, kBytes, &in_reg, peer, &receives[at]));
      OK(comm_send_ready(peer, &ready));
      OK(comm_prepare_wait_ready(peer));
#ifdef MPI_VERSION
      OK(comm_prepare_isend(sent + peer * kBytes, kBytes / 4, MPI_INT, &out_reg, peer, &sends[at]));
#else
      OK(comm_prepare_isend_bytes(sent + peer * kBytes, kBytes, &out_reg, peer, &sends[at]));
#endif
    }
    OK(comm_prepare_wait_all(size, receives.data()));
    OK(comm_prepare_wait_all(size, sends.data()));
    comm_dev_descs* const descs = comm_prepared_requests();
    EXPECT(descs != nullptr);
    if (before.joinable()) before.join();
    before = std::thread([=] { run_step(*descs, sent, got, step); });
    if (step % 3 == 0) OK(comm_progress());
  }
  before.join();
  OK(comm_flush());
  OK(comm_deregister(&out_reg));
  OK(comm_deregister(&in_reg));
}

/* Waits of kernels and of the CPU count together: the k-th one is over when the k-th word came. */
void readiness() {
  comm_request_t ready;
  OK(comm_prepare_wait_ready(rank));
  OK(comm_prepare_wait_ready(rank));
  comm_dev_descs* const descs = comm_prepared_requests();
  OK(comm_send_ready(rank, &ready));
  EXPECT(kernel::wait_geq(descs->ready[0]) == 0);
  std::atomic<bool> told{false};
  std::thread tells([&] {
    usleep(20000);
    told = true;
    OK(comm_send_ready(rank, &ready));
  });
  EXPECT(kernel::wait_geq(descs->ready[1]) == 0);
  const bool was_told = told;
  tells.join();
  EXPECT(was_told);
  int is = 1;
  OK(comm_test_ready(rank, &is));
  EXPECT(!is);
  OK(comm_send_ready(rank, &ready));
  OK(comm_wait_ready(rank));
}

/* A set takes 32 of each kind, and what it refuses changes nothing. */
void limits() {
  unsigned char byte[2] = {7, 0};
  comm_reg_t out = nullptr, in = nullptr;
  comm_request_t receives[33], sends[33], ready = nullptr, none[2] = {nullptr, nullptr};
  for (int k = 0; k < 33; ++k) {
    OK(comm_irecv_bytes(&byte[1], 1, &in, rank, &receives[k]));
    OK(comm_send_ready(rank, &ready));
    EXPECT(comm_prepare_wait_ready(rank) == (k < 32 ? MP_SUCCESS : ENOMEM));
    EXPECT(comm_prepare_isend_bytes(&byte[0], 1, &out, rank, &sends[k]) ==
           (k < 32 ? MP_SUCCESS : ENOMEM));
  }
  EXPECT(comm_prepare_wait_all(33, receives) == ENOMEM);
  OK(comm_prepare_wait_all(30, receives));
  EXPECT(comm_prepare_wait_all(3, receives + 30) == ENOMEM);
  OK(comm_prepare_wait_all(2, none));
  OK(comm_prepare_wait_all(2, receives + 30));
  comm_dev_descs* const first = comm_prepared_requests();
  OK(comm_prepare_wait_ready(rank));
  OK(comm_prepare_isend_bytes(&byte[0], 1, &out, rank, &sends[32]));
  OK(comm_prepare_wait_all(1, &receives[32]));
  comm_dev_descs* const second = comm_prepared_requests();
  EXPECT(first != second && first->n_ready == 32 && first->n_tx == 32 && first->n_wait == 32);
  EXPECT(second->n_ready == 1 && second->n_tx == 1 && second->n_wait == 1);
  for (comm_dev_descs* const set : {first, second}) {
    for (int k = 0; k < set->n_tx; ++k) {
      EXPECT(kernel::wait_geq(set->ready[k]) == 0 && kernel::send(set->tx[k]) == 0);
      EXPECT(kernel::wait(set->wait[k]) == 0 && kernel::signal(set->wait[k]) == 0);
    }
  }
  OK(comm_wait_all(33, receives));
  OK(comm_flush());
  EXPECT(byte[1] == 7);
  /* Empty sets, until the first comes again. */
  for (int k = 0; k < 126; ++k) {
    comm_dev_descs* const set = comm_prepared_requests();
    EXPECT(set != first && set->n_ready == 0 && set->n_tx == 0 && set->n_wait == 0);
  }
  EXPECT(comm_prepared_requests() == first && first->n_ready == 0);
  OK(comm_deregister(&out));
  OK(comm_deregister(&in));
}

void refused() {
  unsigned char byte = 0;
  comm_reg_t reg = nullptr;
  comm_request_t request = nullptr, copies[2];
  EXPECT(comm_prepare_wait_ready(-1) == EINVAL && comm_prepare_wait_ready(size) == EINVAL);
  EXPECT(comm_prepare_isend_bytes(&byte, 1, &reg, size, &request) == EINVAL);
  EXPECT(comm_prepare_isend_bytes(&byte, 1, &reg, rank, nullptr) == EINVAL);
  EXPECT(comm_prepare_isend_bytes(&byte, 1, nullptr, rank, &request) == EINVAL);
  EXPECT(comm_prepare_isend_bytes(&byte, size_t{1} << 40U, &reg, rank, &request) == EINVAL);
  EXPECT(comm_prepare_wait_all(-1, &request) == EINVAL);
  EXPECT(comm_prepare_wait_all(1, nullptr) == EINVAL);
  EXPECT(request == nullptr);
  OK(comm_irecv_bytes(&byte, 1, &reg, rank, &request));
  copies[0] = copies[1] = request;
  EXPECT(comm_prepare_wait_all(2, copies) == EINVAL);
  OK(comm_prepare_wait_all(1, &request));
  EXPECT(comm_prepare_wait_all(1, copies) == EINVAL); /* a kernel waits for it */
  EXPECT(comm_wait_all_on_stream(1, copies, nullptr) == EINVAL);
  comm_request_t send;
  comm_reg_t out = nullptr;
  OK(comm_isend_bytes(&byte, 1, &out, rank, &send));
  comm_dev_descs* const descs = comm_prepared_requests();
  EXPECT(descs->n_ready == 0 && descs->n_tx == 0 && descs->n_wait == 1);
  EXPECT(kernel::wait(descs->wait[0]) == 0 && kernel::signal(descs->wait[0]) == 0);
  OK(comm_wait(&request));
  EXPECT(comm_prepare_wait_all(1, copies) == EINVAL); /* released */
  OK(comm_flush());
  OK(comm_deregister(&reg));
  OK(comm_deregister(&out));
}

/* A receiver that dies before it is ready. */
void lost_peer() {
  EXPECT(size > 1);
  unsigned char byte = 0;
  comm_reg_t reg = nullptr;
  comm_request_t request = nullptr;
  if (rank == size - 1) {
    for (int peer = 0; peer < size - 1; ++peer) OK(comm_wait_ready(peer));
    _exit(0);
  }
  OK(comm_prepare_wait_ready(size - 1));
  OK(comm_prepare_isend_bytes(&byte, 1, &reg, size - 1, &request));
  OK(comm_prepare_wait_all(1, &request));
  comm_dev_descs* const descs = comm_prepared_requests();
  comm_request_t ready;
  OK(comm_send_ready(size - 1, &ready));
  EXPECT(kernel::wait_geq(descs->ready[0]) == gdsync::ERROR_FAILED);
  EXPECT(kernel::wait(descs->wait[0]) == gdsync::ERROR_FAILED);
  EXPECT(comm_wait(&request) == MP_FAILURE);
  EXPECT(comm_prepare_wait_ready(0) == MP_FAILURE);
}

const struct {
  const char* name;
  void (*run)();
} cases[] = {{"exchange", exchange},
             {"readiness", readiness},
             {"limits", limits},
             {"refused", refused},
             {"lost_peer", lost_peer}};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
#ifdef MPI_VERSION
  MPI_Init(&argc, &argv);
#endif
  EXPECT(comm_prepared_requests() == nullptr && comm_prepare_wait_ready(0) == EINVAL);
  for (const auto& each : cases) {
    if (name != each.name) continue;
    begin();
    each.run();
    comm_finalize();
    EXPECT(comm_prepared_requests() == nullptr);
#ifdef MPI_VERSION
    MPI_Finalize();
#endif
    printf("%s: passed\n", each.name);
    return EXIT_SUCCESS;
  }
  return EXIT_FAILURE;
}
