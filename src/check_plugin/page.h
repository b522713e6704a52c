// The page that the checker and its children share: what each child is doing, what came out, and
// what the two children of a rule tell each other.
//
// It is mapped before the children are forked and outlives them, so that a child that crashes or
// hangs leaves behind in which call of the plugin it was.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ropewalk::check_plugin {

/// A function of the plugin, or what stands for one in reports.
enum class Call : std::uint32_t {
  kNone,  ///< the checker's own code
  kLoad,
  kUnload,
  kInit,
  kDevices,
  kGetProperties,
  kListen,
  kConnect,
  kAccept,
  kRegMr,
  kDeregMr,
  kIsend,
  kIrecv,
  kIflush,
  kTest,
  kCloseSend,
  kCloseRecv,
  kCloseListen,
  kIrecvConsumed,
  kMakeVDevice,
  kFinalize,
  kSetNetAttr,
};

/// As NCCL spells it: "isend", "getProperties"; "dlopen" and "dlclose" for loading.
std::string_view name(Call call) noexcept;

constexpr int kMostThreads = 64;  ///< of one child that call the plugin
constexpr int kMostProcesses = 2;
constexpr std::size_t kTextBytes = 1000;
constexpr std::size_t kMailBytes = std::size_t{64} << 10;
constexpr std::size_t kMostNumbers = 4096;

enum class State : int { kRunning, kPassed, kFailed, kSkipped, kStopped };

/// What one child says. Written by the child, read by the others and the checker.
struct ProcessPage {
  std::array<std::atomic<Call>, kMostThreads> calls;  ///< what each thread is in
  std::atomic<int> threads;                           ///< how many of them are used
  std::atomic<Call> crashed_in;                       ///< of the thread that got a fatal signal
  std::atomic<bool> crashed;
  std::atomic<int> pid;
  std::atomic<bool> meant_to_die;  ///< it kills itself as part of the rule
  std::atomic<bool> done;          ///< it has nothing more to ask of the plugin
  std::atomic<State> state;
  std::array<char, kTextBytes> expected;  ///< kFailed; of kSkipped the reason
  std::array<char, kTextBytes> came;
  std::array<char, kTextBytes> warning;  ///< the last warning in the plugin's log
  std::atomic<std::uint64_t> meetings;   ///< how often it came to a meeting
  std::array<std::byte, kMailBytes> mail;
  std::atomic<std::uint64_t> progress;       ///< whatever a rule counts
  std::array<double, kMostNumbers> numbers;  ///< what a measure found
};

struct Page {
  std::atomic<bool> stop;         ///< a child has failed: the other need not wait for it
  std::atomic<int> first_failed;  ///< 1 + the number of the child that failed first; 0: none
  std::array<ProcessPage, kMostProcesses> processes;
};

/// A mapping that children inherit. Lives as long as the checker.
class SharedPage {
 public:
  SharedPage();
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  [[nodiscard]] Page& get() noexcept { return *page_; }
  /// As new, for the next rule.
  void clear() noexcept;

 private:
  Page* page_ = nullptr;
};

/// Copies as much as fits, with an end.
void put_text(std::array<char, kTextBytes>& place, std::string_view text) noexcept;

/// Notes that the calling thread is in `call`, as long as it lives. Calls do not nest.
class Noted {
 public:
  Noted(ProcessPage& page, Call call) noexcept;
  ~Noted();
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

 private:
  std::atomic<Call>* place_;
};

/// From now on a fatal signal of this process leaves the call in the page before it ends it.
void note_crashes(ProcessPage& page);

}  // namespace ropewalk::check_plugin
