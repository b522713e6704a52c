#include "check_plugin/page.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX's
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

// The place of this thread's note; found at its first call.
thread_local std::atomic<Call>* note_of_thread = nullptr;
ProcessPage* crash_page = nullptr;

void on_crash(int signal_number) {
  if (crash_page != nullptr) {
    const std::atomic<Call>* note = note_of_thread;
    crash_page->crashed_in.store(note == nullptr ? Call::kNone : note->load());
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

void put_text(std::array<char, kTextBytes>& place, std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), place.size() - 1);
  std::copy_n(text.data(), length, place.data());
  place[length] = '\0';
}

Noted::Noted(ProcessPage& page, Call call) noexcept {
  if (note_of_thread == nullptr) {
    const int number = std::min(page.threads.fetch_add(1), kMostThreads - 1);
    note_of_thread = &page.calls[static_cast<std::size_t>(number)];
  }
  place_ = note_of_thread;
  place_->store(call, std::memory_order_relaxed);
}

Noted::~Noted() { place_->store(Call::kNone, std::memory_order_relaxed); }

void note_crashes(ProcessPage& page) {
  crash_page = &page;
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
