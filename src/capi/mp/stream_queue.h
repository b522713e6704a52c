// What a stream has been told to do and has not done.
//
// Two kinds. A host stream is this queue alone. For a stream of a GPU the queue is carried out by
// the host, too: the stream raises a word when it comes to an operation (kTriggered waits for
// that), and waits for a second one where it must not go on before the host has done its part
// (kRelease). Both words are signals of this rank to itself, in a window without data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "capi/mp/request.h"

namespace ropewalk::mp {

enum class StreamStep : std::uint8_t {
  kTriggered,  ///< waits until the GPU's stream has raised its word to `count`
  kRelease,    ///< lets the GPU's stream go on
  kPost,       ///< starts `request`
  kWait,       ///< waits until `request` has ended
  kPassed,     ///< the stream has come past its wait for `request`
  kWaitWord,   ///< waits for `word`
  kWriteWord   ///< writes `value` to `word`
};

struct StreamOperation {
  StreamStep step = StreamStep::kPost;
  mp_request* request = nullptr;
  std::uint64_t count = 0;
  std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
  int condition = 0;  ///< mp_wait_flags
};

/// As mp_wait_flags says; acquires what was written before the word.
bool word_is(const std::uint32_t* word, std::uint32_t value, int condition);

/// Threads: one at a time.
class StreamQueue {
 public:
  /// A stream of the host.
  StreamQueue() = default;
  /// A stream of this rank's GPU. Its words are two slots, from `slot` on, of `words`.
  StreamQueue(rwStream_t stream, rwMessageWindow_t words, int self, int slot)
      : stream_(stream), words_(words), self_(self), slot_(slot) {}

  /// Appends. `blocks`: the stream goes on when all of them are done, else as it likes.
  /// @throws Failure where the stream cannot be used; nothing was appended then
  void append(std::span<const StreamOperation> operations, bool blocks);

  [[nodiscard]] bool idle() const noexcept { return operations_.empty(); }
  /// Calls on the GPU's stream that it may not have come past.
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  /// Does what can be done. `post` starts a request. @return whether anything moved. @throws
  /// Failure
  bool poll(const std::function<void(mp_request&)>& post);
  /// The communicator is broken: ends waits and posts nothing. A stream that waits continues.
  void fail(const std::string& text);

 private:
  bool run(const StreamOperation& operation, const std::function<void(mp_request&)>& post);
  void trigger();

  rwStream_t stream_ = nullptr;
  rwMessageWindow_t words_ = nullptr;
  int self_ = 0;
  int slot_ = 0;
  std::uint64_t triggers_ = 0;  // told to the stream
  std::size_t held_ = 0;
  std::deque<StreamOperation> operations_;
};

}  // namespace ropewalk::mp
