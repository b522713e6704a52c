// One rank between mp_init and mp_finalize: its communicator, channels, windows, streams, requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capi/mp/kernel_memory.h"
#include "capi/mp/kernel_requests.h"
#include "capi/mp/peer_channel.h"
#include "capi/mp/request.h"
#include "capi/mp/stream_queue.h"

namespace ropewalk::mp {

/// What mp_init was told.
struct Arguments {
  std::optional<std::vector<int>> peers;  ///< nothing: all ranks
  int gpu = -1;                           ///< negative: host memory alone
};

/// @throws Failure EINVAL for a request that is only prepared
void require_posted(const mp_request& request);
/// Whether a stream or kernel may be told to wait for it. @throws Failure EINVAL
void require_waitable(const mp_request& request);

/// Threads: any; they exclude each other. Every call may throw Failure.
///
/// A thread that waits makes progress on all operations of this rank. While none waits, a
/// background thread does, so that operations and streams go on while the rank computes.
class Engine {
 public:
  /// Collective: joins by `join`. An error of one rank's arguments is thrown on all.
  Engine(const std::function<rwResult_t(rwComm_t*)>& join, const Arguments& arguments);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Collective: waits for all ranks, and leaves.
  void finalize();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Whether memory is that of a GPU, and this rank works with one.
  [[nodiscard]] bool on_gpu(const void* memory) const;

  /// A prepared request that belongs to the engine. Throws where it cannot be right.
  mp_request* prepare(mp_request request);
  /// Starts it.
  void post(mp_request* request);
  /// Appends operations to a stream; `stream` NULL as in mp.h.
  void enqueue(void* stream, std::span<const StreamOperation> operations, bool blocks);

  /// What a kernel needs to start a prepared request.
  mp_kernel_send_t start_by_kernel(mp_request* request);
  /// What a kernel needs to wait for requests, one each into `waits`.
  void wait_by_kernel(std::span<mp_request* const> requests, mp_kernel_wait_t* waits);
  /// What a kernel needs to wait for a word.
  mp_kernel_word_t word_for_kernel(std::uint32_t* word);
  /// As KernelMemory::allocate(); freed with the engine.
  void* allocate_for_kernels(std::size_t bytes);

  /// Waits for it and releases it. @throws Failure MP_FAILURE when it failed; it was released
  /// @pre it was posted
  void wait(mp_request* request);
  [[nodiscard]] std::uint32_t count_complete(std::span<mp_request* const> requests);
  void wait_word(const std::uint32_t* word, std::uint32_t value, int condition);
  /// @throws Failure EINVAL for a request that is none, or is not in `state`
  mp_request& checked(mp_request* request);
  mp_request& checked_in(mp_request* request, State state);
  /// Releases a prepared request that could not be posted.
  void discard(mp_request* request);

  /// Collective.
  mp_window* create_window(void* memory, std::size_t bytes);
  void destroy_window(mp_window* window);
  mp_window& checked(mp_window* window);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void check_arguments(const Arguments& arguments);
  void make_channels(const Arguments& arguments);
  void require_whole() const;
  void require_peer(int peer) const;
  mp_request& checked_locked(mp_request* request) const;

  StreamQueue& queue_of(void* stream);
  [[nodiscard]] std::size_t held_by_streams() const;
  void start(mp_request& request);
  void start_transfer(mp_request& request);
  void release(mp_request* request);
  bool poll();
  bool poll_transfers();
  bool poll_streams();
  bool poll_kernels();
  void poll_or_fail();
  void fail(const std::string& text);
  [[nodiscard]] bool idle() const;
  template <typename Done>
  void wait_until(Lock& lock, Done&& done);
  void look(std::chrono::steady_clock::duration waited);
  void barrier(Lock& lock);
  void wake();
  void work();

  std::mutex mutex_;
  rwComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 0;
  int gpu_ = -1;                                   // negative: none
  std::chrono::steady_clock::duration timeout_{};  // zero: none
  rwMessageWindow_t ring_ = nullptr;
  rwMessageWindow_t words_ = nullptr;
  std::uint64_t barriers_ = 0;
  std::vector<std::unique_ptr<PeerChannel>> channels_;  // by rank; null: no peer
  std::vector<std::unique_ptr<mp_window>> windows_;     // also destroyed ones
  std::unordered_set<mp_window*> usable_windows_;
  std::unordered_map<mp_request*, std::unique_ptr<mp_request>> requests_;
  std::vector<mp_request*> transfers_;  // puts and gets under way
  std::map<void*, StreamQueue> streams_;
  std::optional<KernelMemory> kernel_memory_;
  std::optional<KernelRequests> kernels_;
  std::string broken_;  // why the ranks cannot go on

  std::atomic<int> waiting_{0};  // calls that poll, or are about to
  bool ends_ = false;
  bool finalized_ = false;
  std::condition_variable work_comes_;
  std::thread thread_;
};

}  // namespace ropewalk::mp
