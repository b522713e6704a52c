/* Descriptors for kernels, case by case: kernel CASE. Kernels are threads of the host, which run
 * the functions of mp/device.cuh. Each rank prints "CASE: passed" at the end. */
#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mp/device.cuh>
#include <string>
#include <thread>
#include <vector>

#include "cases.h"

namespace {

using mp::mlx5::get_descriptors;
namespace kernel = mp::device::mlx5;

int rank, size, right, left;
unsigned char source[1 << 20], target[1 << 20];
mp_reg_t source_reg, target_reg;

void begin() {
  OK(mp_init_env(nullptr, 0, MP_INIT_DEFAULT, gpu_of_tests()));
  rank = mp_rank();
  size = mp_size();
  right = (rank + 1) % size;
  left = (rank + size - 1) % size;
  OK(mp_register(source, sizeof source, &source_reg));
  OK(mp_register(target, sizeof target, &target_reg));
}

void end() {
  OK(mp_deregister(&source_reg));
  OK(mp_deregister(&target_reg));
  mp_finalize();
}

/* A send to `right` and a receive from `left`, as a kernel has them. */
struct Exchange {
  mp_request_t requests[2] = {};
  mp::mlx5::send_desc_t start;
  mp::mlx5::wait_desc_t sent, received;

  void prepare(size_t offset, int bytes) {
    OK(mp_irecv(target + offset, bytes, left, &target_reg, &requests[0]));
    OK(mp_send_prepare(source + offset, bytes, right, &source_reg, &requests[1]));
    OK(get_descriptors(&start, &requests[1]));
    OK(get_descriptors(&sent, &requests[1]));
    OK(get_descriptors(&received, &requests[0]));
  }
};

/* Everything in one kernel: what is sent is written there, and what comes is looked at there. The
 * CPU waits for the requests meanwhile. */
void messages() {
  const int sizes[] = {0, 1, 1000, 65536, 300000};
  for (const int bytes : sizes) {
    const int steps = bytes > 10000 ? 3 : 20;
    const auto stride = static_cast<size_t>(bytes);
    std::vector<Exchange> exchanges(static_cast<size_t>(steps));
    memset(target, 0, sizeof target); /* before anything may come */
    for (int k = 0; k < steps; ++k) {
      exchanges[static_cast<size_t>(k)].prepare(static_cast<size_t>(k) * stride, bytes);
    }
    std::thread runs([&] {
      for (int k = 0; k < steps; ++k) {
        Exchange& one = exchanges[static_cast<size_t>(k)];
        const size_t offset = static_cast<size_t>(k) * stride;
        fill(source + offset, stride, rank, k);
        EXPECT(kernel::send(one.start) == 0);
        EXPECT(kernel::wait(one.received) == 0);
        EXPECT(wrong(target + offset, stride, left, k) == 0);
        EXPECT(kernel::signal(one.received) == 0);
        EXPECT(kernel::wait(one.sent) == 0);
        memset(source + offset, 0xff, stride);
        EXPECT(kernel::signal(one.sent) == 0);
      }
    });
    for (Exchange& each : exchanges) OK(mp_wait_all(2, each.requests));
    runs.join();
    EXPECT(exchanges[0].requests[0] == nullptr && exchanges[0].requests[1] == nullptr);
  }
}

/* More descriptors than are allocated at once, in turn. */
void many() {
  for (int round = 0; round < 3; ++round) {
    std::vector<Exchange> exchanges(2100);
    for (Exchange& each : exchanges) each.prepare(0, 4);
    std::thread runs([&] {
      for (Exchange& each : exchanges) EXPECT(kernel::send(each.start) == 0);
      for (Exchange& each : exchanges) {
        EXPECT(kernel::wait(each.sent) == 0 && kernel::wait(each.received) == 0);
        EXPECT(kernel::signal(each.sent) == 0 && kernel::signal(each.received) == 0);
      }
    });
    for (Exchange& each : exchanges) OK(mp_wait_all(2, each.requests));
    runs.join();
  }
}

/* A kernel puts twice, once without a request, and sends; the peer's kernel finds the puts. */
void put_messages() {
  mp_window_t window;
  mp_request_t put, unseen, send, receive;
  mp::mlx5::send_desc_t starts[3];
  mp::mlx5::wait_desc_t put_done, received;
  OK(mp_window_create(target, sizeof target, &window));
  OK(mp_put_prepare(source, 1000, &source_reg, right, 5000, &window, &put, 0));
  OK(mp_put_prepare(source + 1000, 1000, &source_reg, right, 6000, &window, &unseen,
                    MP_PUT_NOWAIT));
  OK(mp_send_prepare(source, 1, right, &source_reg, &send));
  OK(mp_irecv(target, 1, left, &target_reg, &receive));
  OK(get_descriptors(&starts[0], &put));
  OK(get_descriptors(&starts[1], &unseen));
  EXPECT(unseen == nullptr);
  OK(get_descriptors(&starts[2], &send));
  OK(get_descriptors(&put_done, &put));
  OK(get_descriptors(&received, &receive));
  std::thread runs([&] {
    fill(source, 2000, rank, 1);
    for (mp::mlx5::send_desc_t& each : starts) EXPECT(kernel::send(each) == 0);
    EXPECT(kernel::wait(put_done) == 0 && kernel::signal(put_done) == 0);
    EXPECT(kernel::wait(received) == 0);
    EXPECT(wrong(target + 5000, 2000, left, 1) == 0);
    EXPECT(kernel::signal(received) == 0);
  });
  runs.join();
  OK(mp_wait(&put));
  OK(mp_wait(&send));
  OK(mp_wait(&receive));
}

/* Whatever the order in which kernels start them, messages leave in that of get_descriptors. */
void order() {
  enum { kMessages = 50 };
  mp_request_t sends[kMessages], receives[kMessages];
  mp::mlx5::send_desc_t starts[kMessages];
  fill(source, kMessages, rank, 3);
  for (int k = 0; k < kMessages; ++k) {
    OK(mp_irecv(target + k, 1, left, &target_reg, &receives[k]));
    OK(mp_send_prepare(source + k, 1, right, &source_reg, &sends[k]));
    OK(get_descriptors(&starts[k], &sends[k]));
  }
  std::thread runs([&] {
    for (int k = kMessages - 1; k >= 0; --k) EXPECT(kernel::send(starts[k]) == 0);
  });
  runs.join();
  OK(mp_wait_all(kMessages, receives));
  OK(mp_wait_all(kMessages, sends));
  EXPECT(wrong(target, kMessages, left, 3) == 0);
}

/* All conditions, on a word of the CPU and on one that a peer puts to. */
void words() {
  uint32_t word = 0xfffffff0U;
  mp::mlx5::isem32_t at;
  OK(get_descriptors(&at, &word, 5)); /* cyclic: 21 more */
  std::thread waits([&] { EXPECT(kernel::wait_geq(at) == 0); });
  usleep(2000);
  __atomic_store_n(&word, 6, __ATOMIC_RELEASE);
  waits.join();
  OK(get_descriptors(&at, &word, 6));
  EXPECT(kernel::wait_eq(at) == 0);
  at.value = 2;
  EXPECT(kernel::wait_and(at) == 0);
  at.value = ~0U << 4U;
  EXPECT(kernel::wait_nor(at) == 0);
  EXPECT(gdsync::device::wait(at, static_cast<gdsync::wait_cond_t>(9)) == gdsync::ERROR_INVALID);
  at.value = 77;
  EXPECT(kernel::release(at) == 0 && word == 77);
  gdsync::sem32_t own = {9, 8};
  EXPECT(gdsync::device::wait(own, GDS_WAIT_COND_GEQ) == 0);
  own.value = 10;
  EXPECT(gdsync::device::wait_geq(own) == gdsync::ERROR_TIMEOUT); /* after 2^32 ns */

  void* memory = nullptr;
  OK(mp_kernel_memory(64, &memory));
  auto* const table = static_cast<uint32_t*>(memory);
  EXPECT(table[0] == 0 && table[15] == 0);
  mp_window_t window;
  mp_request_t put;
  mp::mlx5::send_desc_t start;
  OK(mp_window_create(table, 64, &window));
  OK(get_descriptors(&at, table, 1));
  const uint32_t one = 1;
  memcpy(source, &one, sizeof one);
  OK(mp_put_prepare(source, 4, &source_reg, right, 0, &window, &put, 0));
  OK(get_descriptors(&start, &put));
  std::thread tells([&] {
    EXPECT(kernel::send(start) == 0);
    EXPECT(kernel::wait_geq(at) == 0);
  });
  tells.join();
  OK(mp_wait(&put));
  OK(mp_window_destroy(&window));
}

/* The CPU may not release what a kernel has not seen. */
void released_in_order() {
  Exchange one;
  one.prepare(0, 100);
  EXPECT(mp_progress_all(2, one.requests) == 0);
  EXPECT(kernel::send(one.start) == 0);
  EXPECT(kernel::wait(one.sent) == 0 && kernel::wait(one.received) == 0);
  usleep(20000);
  EXPECT(mp_progress_all(2, one.requests) == 0);
  EXPECT(kernel::signal(one.sent) == 0);
  while (mp_progress_all(2, one.requests) == 0) usleep(100);
  EXPECT(mp_progress_all(1, &one.requests[1]) == 1);
  std::atomic<bool> signalled{false};
  std::thread runs([&] {
    usleep(20000);
    signalled = true;
    EXPECT(kernel::signal(one.received) == 0);
  });
  OK(mp_wait(&one.requests[0]));
  EXPECT(signalled);
  runs.join();
  OK(mp_wait(&one.requests[1]));
}

/* A descriptor that is used again starts nothing, also when its words are another request's. */
void used_twice() {
  enum { kOthers = 4095 };
  Exchange one;
  one.prepare(0, 8);
  fill(source, 8 + kOthers + 8, rank, 4);
  for (int k = 0; k < 3; ++k) EXPECT(kernel::send(one.start) == 0);
  EXPECT(kernel::wait(one.received) == 0 && kernel::signal(one.received) == 0);
  EXPECT(kernel::wait(one.sent) == 0 && kernel::signal(one.sent) == 0);
  OK(mp_wait_all(2, one.requests));

  std::vector<mp_request_t> sends(kOthers), receives(kOthers);
  mp::mlx5::send_desc_t start;
  for (int k = 0; k < kOthers; ++k) {
    const auto at = static_cast<size_t>(k);
    OK(mp_irecv(target + 8 + k, 1, left, &target_reg, &receives[at]));
    OK(mp_send_prepare(source + 8 + k, 1, right, &source_reg, &sends[at]));
    OK(get_descriptors(&start, &sends[at]));
    EXPECT(start.db.ptr != one.start.db.ptr);
    EXPECT(kernel::send(start) == 0);
  }
  mp_request_t send, receive;
  OK(mp_irecv(target + 8 + kOthers, 8, left, &target_reg, &receive));
  OK(mp_send_prepare(source + 8 + kOthers, 8, right, &source_reg, &send));
  OK(get_descriptors(&start, &send));
  EXPECT(start.db.ptr == one.start.db.ptr);
  OK(mp_wait_all(kOthers, sends.data()));
  OK(mp_wait_all(kOthers, receives.data()));
  EXPECT(kernel::send(one.start) == 0); /* its request is released */
  usleep(20000);
  EXPECT(mp_progress_all(1, &send) == 0);
  EXPECT(kernel::send(start) == 0);
  OK(mp_wait(&send));
  OK(mp_wait(&receive));
  EXPECT(wrong(target, 8 + kOthers + 8, left, 4) == 0);
}

void refused() {
  mp_request_t send, receive, unseen, none = nullptr, both[2];
  mp_window_t window;
  mp::mlx5::send_desc_t start;
  mp::mlx5::wait_desc_t waits, sent;
  mp::mlx5::isem32_t at;
  uint32_t word[2] = {};
  OK(mp_window_create(target, sizeof target, &window));
  OK(mp_irecv(target, 4, left, &target_reg, &receive));
  OK(mp_send_prepare(source, 4, right, &source_reg, &send));
  OK(mp_put_prepare(source, 4, &source_reg, right, 100, &window, &unseen, MP_PUT_NOWAIT));

  /* Nothing to describe, or nowhere to. */
  EXPECT(get_descriptors(&start, &none) == EINVAL && get_descriptors(&start, nullptr) == EINVAL);
  EXPECT(get_descriptors(&waits, &none) == EINVAL && get_descriptors(&waits, nullptr) == EINVAL);
  EXPECT(get_descriptors(static_cast<mp::mlx5::send_desc_t*>(nullptr), &send) == EINVAL);
  EXPECT(get_descriptors(static_cast<mp::mlx5::wait_desc_t*>(nullptr), &receive) == EINVAL);
  EXPECT(get_descriptors(static_cast<mp::mlx5::isem32_t*>(nullptr), word, 0) == EINVAL);
  EXPECT(get_descriptors(&at, nullptr, 0) == EINVAL);
  EXPECT(get_descriptors(&at, reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(word) + 1), 0) ==
         EINVAL);
  void* memory = nullptr;
  EXPECT(mp_kernel_memory(0, &memory) == EINVAL && memory == nullptr);
  EXPECT(mp_kernel_memory(8, nullptr) == EINVAL);

  /* The wrong kind. */
  EXPECT(get_descriptors(&start, &receive) == EINVAL);
  EXPECT(strstr(mp_last_error(), "not prepared") != nullptr);
  EXPECT(get_descriptors(&waits, &send) == EINVAL); /* nobody starts it */
  EXPECT(strstr(mp_last_error(), "not posted") != nullptr);
  OK(mp_iput_post_on_stream(&unseen, nullptr));
  EXPECT(unseen == nullptr);

  /* Twice. */
  mp_request_t copy = send;
  OK(get_descriptors(&start, &send));
  EXPECT(get_descriptors(&start, &copy) == EINVAL);
  EXPECT(mp_isend_post_on_stream(&send, nullptr) == EINVAL);
  OK(get_descriptors(&sent, &send));
  EXPECT(get_descriptors(&waits, &copy) == EINVAL);
  EXPECT(mp_wait_on_stream(&send, nullptr) == EINVAL);
  EXPECT(strstr(mp_last_error(), "waits for it already") != nullptr);
  mp_kernel_wait_t two[2];
  both[0] = both[1] = receive;
  EXPECT(mp_kernel_wait(2, both, two) == EINVAL);
  EXPECT(strstr(mp_last_error(), "twice") != nullptr);
  both[1] = nullptr;
  EXPECT(mp_kernel_wait(2, both, two) == EINVAL); /* and the first was not taken */
  OK(mp_wait_on_stream(&receive, nullptr));
  EXPECT(get_descriptors(&waits, &receive) == EINVAL);

  /* Empty descriptors. */
  mp::mlx5::send_desc_t no_send;
  mp::mlx5::wait_desc_t no_wait = {};
  EXPECT(kernel::send(no_send) == gdsync::ERROR_INVALID);
  EXPECT(kernel::wait(no_wait) == gdsync::ERROR_INVALID);
  EXPECT(kernel::signal(no_wait) == gdsync::ERROR_INVALID);

  /* What was refused changed nothing. */
  EXPECT(kernel::send(start) == 0);
  OK(mp_wait(&receive));
  EXPECT(kernel::wait(sent) == 0 && kernel::signal(sent) == 0);
  OK(mp_wait(&send));
}

/* A message longer than its receive: an error of the receive alone, which its kernel hears. */
void truncated() {
  mp_request_t receive, send;
  mp::mlx5::wait_desc_t waits;
  OK(mp_irecv(target, 4, left, &target_reg, &receive));
  OK(get_descriptors(&waits, &receive));
  OK(mp_isend(source, 8, right, &source_reg, &send));
  EXPECT(kernel::wait(waits) == gdsync::ERROR_FAILED);
  EXPECT(mp_wait(&receive) == MP_FAILURE); /* no signal is needed */
  EXPECT(strstr(mp_last_error(), "a message of 8 bytes") != nullptr);
  OK(mp_wait(&send));
  Exchange one;
  one.prepare(0, 8);
  EXPECT(kernel::send(one.start) == 0);
  EXPECT(kernel::wait(one.received) == 0 && kernel::signal(one.received) == 0);
  EXPECT(kernel::wait(one.sent) == 0 && kernel::signal(one.sent) == 0);
  OK(mp_wait_all(2, one.requests));
}

/* With a short TIMEOUT: what does not come in time may be waited for again. */
void deadline() {
  Exchange one;
  uint32_t word = 0;
  mp::mlx5::isem32_t at;
  one.prepare(0, 8);
  OK(get_descriptors(&at, &word, 1));
  EXPECT(kernel::wait_geq(at) == gdsync::ERROR_TIMEOUT);
  EXPECT(kernel::wait(one.sent) == gdsync::ERROR_TIMEOUT);
  EXPECT(kernel::send(one.start) == 0);
  EXPECT(kernel::wait(one.sent) == 0 && kernel::signal(one.sent) == 0);
  EXPECT(kernel::wait(one.received) == 0 && kernel::signal(one.received) == 0);
  OK(mp_wait_all(2, one.requests));
}

/* The last rank dies when all others have descriptors. */
void let_the_last_die() {
  mp_request_t request;
  if (rank == size - 1) {
    for (int peer = 0; peer < size - 1; ++peer) {
      OK(mp_irecv(target, 1, peer, &target_reg, &request));
      OK(mp_wait(&request));
    }
    _exit(0);
  }
  OK(mp_isend(source, 1, size - 1, &source_reg, &request));
  OK(mp_wait(&request));
}

/* No call of the CPU waits: kernels alone. */
void lost_peer() {
  EXPECT(size > 1);
  mp_request_t receive, send;
  mp::mlx5::wait_desc_t waits, sent;
  mp::mlx5::send_desc_t start;
  if (rank != size - 1) {
    OK(mp_irecv(target, 100, size - 1, &target_reg, &receive));
    OK(get_descriptors(&waits, &receive));
    OK(mp_send_prepare(source, 4, rank, &source_reg, &send));
    OK(get_descriptors(&start, &send));
    OK(get_descriptors(&sent, &send));
  }
  let_the_last_die();
  std::thread first([&] { EXPECT(kernel::wait(waits) == gdsync::ERROR_FAILED); });
  EXPECT(kernel::wait(sent) == gdsync::ERROR_FAILED); /* which nobody started */
  first.join();
  EXPECT(mp_wait(&receive) == MP_FAILURE && mp_wait(&send) == MP_FAILURE);
  EXPECT(mp_send_prepare(source, 4, rank, &source_reg, &send) == MP_FAILURE);
  EXPECT(strstr(mp_last_error(), "rank") != nullptr);
}

/* A word that the lost peer would have written, and nothing else under way. */
void lost_peer_and_a_word() {
  EXPECT(size > 1);
  uint32_t word = 0;
  mp::mlx5::isem32_t at;
  OK(get_descriptors(&at, &word, 1));
  let_the_last_die();
  EXPECT(kernel::wait_geq(at) == gdsync::ERROR_FAILED);
  EXPECT(get_descriptors(&at, &word, 1) == MP_FAILURE);
}

const struct {
  const char* name;
  void (*run)();
} cases[] = {{"messages", messages},     {"many", many},
             {"puts", put_messages},     {"order", order},
             {"words", words},           {"released_in_order", released_in_order},
             {"used_twice", used_twice}, {"refused", refused},
             {"truncated", truncated},   {"deadline", deadline},
             {"lost_peer", lost_peer},   {"lost_peer_and_a_word", lost_peer_and_a_word}};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  for (const auto& each : cases) {
    if (name != each.name) continue;
    begin();
    each.run();
    end();
    printf("%s: passed\n", each.name);
    return EXIT_SUCCESS;
  }
  return EXIT_FAILURE;
}
