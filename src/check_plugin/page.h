// The page that the checker and its children share: each child's current call, its outcome, and the
// messages between the two children of a rule.
//
// It is mapped before the children are forked and outlives them, so that it shows in which call of
// the plugin a child crashed or hangs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

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

/// A thread's current call, and in the upper bits the number of calls that it has begun, to
/// distinguish a thread that stays in one call from one that calls repeatedly.
using Note = std::uint64_t;
constexpr Call call_of(Note note) noexcept { return static_cast<Call>(note & 0xff); }

/// Warnings that the plugin logged, each once: the first and the last ones, where there are more
/// than fit.
struct Log {
  static constexpr std::size_t kFirst = 8;
  static constexpr std::size_t kLast = 8;
  struct Line {
    Call call;  ///< of the plugin in which it was logged; kNone: by a thread of its own
    std::array<char, kTextBytes> text;
  };
  std::atomic<std::uint32_t> count;  ///< of all, also those that were overwritten
  std::array<Line, kFirst + kLast> lines;

  /// One writer at a time.
  void add(Call call, std::string_view text) noexcept;
  void clear() noexcept { count.store(0); }
  /// Those that are there, oldest first.
  [[nodiscard]] std::vector<const Line*> in_order() const;
};

/// The report of one child. Written by the child, read by the others and the checker.
struct ProcessPage {
  std::array<std::atomic<Note>, kMostThreads> notes;  ///< what each thread is in
  std::atomic<int> threads;                           ///< how many of them are used
  std::atomic<Call> crashed_in;                       ///< of the thread that got a fatal signal
  std::array<char, 16> crashed_thread;                ///< its name, if the plugin started it
  std::atomic<bool> crashed;
  std::atomic<int> pid;
  std::atomic<bool> meant_to_die;     ///< it kills itself as part of the rule
  std::atomic<bool> ends_alone;       ///< it ends without waiting for the other
  std::atomic<bool> done;             ///< it has nothing more to ask of the plugin
  std::atomic<bool> must_leave_none;  ///< processes that outlive it make the rule fail
  std::atomic<Call> started_process;  ///< the call in which the first of them appeared
  std::atomic<State> state;
  std::atomic<std::int64_t> ended;        ///< when it came to its end; ns of steady_clock
  std::array<char, kTextBytes> expected;  ///< kFailed; of kSkipped the reason
  std::array<char, kTextBytes> came;
  Log log;
  std::atomic<std::uint64_t> meetings;  ///< how often it came to a meeting
  std::array<std::byte, kMailBytes> mail;
  std::atomic<std::uint64_t> progress;       ///< whatever a rule counts
  std::array<double, kMostNumbers> numbers;  ///< results of a measurement
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
void put_text(std::array<char, kTextBytes>& destination, std::string_view text) noexcept;

/// Notes that the calling thread is in `call`, as long as it lives. Calls do not nest.
class Noted {
 public:
  Noted(ProcessPage& page, Call call) noexcept;
  ~Noted();
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

 private:
  std::atomic<Note>* note_;
};

/// The call that this thread is in.
Call present_call() noexcept;

/// From now on a fatal signal of this process leaves the call in the page before it ends it. The
/// calling thread is one of the checker's, as are those that call own_thread().
void note_crashes(ProcessPage& page);
void own_thread() noexcept;

}  // namespace ropewalk::check_plugin
