#include "check_plugin/page.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX's
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

// The index of this thread's note; found at its first call.
thread_local std::atomic<Note>* note_of_thread = nullptr;
thread_local Note calls_of_thread = 0;
thread_local bool checkers_thread = false;
ProcessPage* crash_page = nullptr;

void on_crash(int signal_number) {
  if (crash_page != nullptr) {
    crash_page->crashed_in.store(present_call());
    if (!checkers_thread) prctl(PR_GET_NAME, crash_page->crashed_thread.data());
    crash_page->crashed.store(true);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

std::string_view name(Call call) noexcept {
  switch (call) {
    case Call::kNone: return "";
    case Call::kLoad: return "dlopen";
    case Call::kUnload: return "dlclose";
    case Call::kInit: return "init";
    case Call::kDevices: return "devices";
    case Call::kGetProperties: return "getProperties";
    case Call::kListen: return "listen";
    case Call::kConnect: return "connect";
    case Call::kAccept: return "accept";
    case Call::kRegMr: return "regMr";
    case Call::kDeregMr: return "deregMr";
    case Call::kIsend: return "isend";
    case Call::kIrecv: return "irecv";
    case Call::kIflush: return "iflush";
    case Call::kTest: return "test";
    case Call::kCloseSend: return "closeSend";
    case Call::kCloseRecv: return "closeRecv";
    case Call::kCloseListen: return "closeListen";
    case Call::kIrecvConsumed: return "irecvConsumed";
    case Call::kMakeVDevice: return "makeVDevice";
    case Call::kFinalize: return "finalize";
    case Call::kSetNetAttr: return "setNetAttr";
  }
  return "";
}

SharedPage::SharedPage() {
  void* memory =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error(errno, "mapping a page for the children");
  page_ = new (memory) Page{};
}

SharedPage::~SharedPage() { munmap(page_, sizeof(Page)); }

void SharedPage::clear() noexcept { page_ = new (page_) Page{}; }

void put_text(std::array<char, kTextBytes>& destination, std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), destination.size() - 1);
  std::copy_n(text.data(), length, destination.data());
  destination[length] = '\0';
}

void Log::add(Call call, std::string_view text) noexcept {
  const std::uint32_t before = count.load();
  Line line{call, {}};
  put_text(line.text, text);
  const std::size_t filled = std::min<std::size_t>(before, lines.size());
  const bool known = std::any_of(lines.begin(), lines.begin() + filled, [&](const Line& other) {
    return other.call == line.call && other.text == line.text;
  });
  if (known) return;
  lines[before < kFirst ? before : kFirst + (before - kFirst) % kLast] = line;
  count.store(before + 1);
}

std::vector<const Log::Line*> Log::in_order() const {
  const std::size_t total = count.load();
  std::vector<const Line*> found;
  for (std::size_t i = 0; i < std::min(total, kFirst); ++i) found.push_back(&lines[i]);
  const std::size_t ring = total > lines.size() ? total - kLast : kFirst;
  for (std::size_t i = ring; i < total; ++i) found.push_back(&lines[kFirst + (i - kFirst) % kLast]);
  return found;
}

Noted::Noted(ProcessPage& page, Call call) noexcept {
  if (note_of_thread == nullptr) {
    const int number = std::min(page.threads.fetch_add(1), kMostThreads - 1);
    note_of_thread = &page.notes[static_cast<std::size_t>(number)];
  }
  note_ = note_of_thread;
  note_->store(++calls_of_thread << 8 | static_cast<Note>(call), std::memory_order_relaxed);
}

Noted::~Noted() { note_->store(0, std::memory_order_relaxed); }

Call present_call() noexcept {
  return note_of_thread == nullptr ? Call::kNone : call_of(note_of_thread->load());
}

void own_thread() noexcept { checkers_thread = true; }

void note_crashes(ProcessPage& page) {
  crash_page = &page;
  own_thread();
  // A stack of its own: what overflowed the thread's cannot be noted on it.
  static std::array<std::byte, std::size_t{64} << 10> stack;
  stack_t alternative{};
  alternative.ss_sp = stack.data();
  alternative.ss_size = stack.size();
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) {
    sigaction(number, &action, nullptr);
  }
}

}  // namespace ropewalk::check_plugin
