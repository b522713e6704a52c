#include "bootstrap/context.h"

#include <atomic>
#include <span>

#include "bootstrap/handshake.h"
#include "bootstrap/service.h"
#include "core/fork.h"
#include "core/random.h"

namespace ropewalk::bootstrap {

Service::Service() : EventLoop("bootstrap") {
  require_sodium();
  fill_random(std::as_writable_bytes(std::span(token_)));
}

namespace {

std::atomic<Context*>& process_context() {
  static std::atomic<Context*> context{nullptr};
  return context;
}

}  // namespace

Context::Context() : service_(std::make_shared<Service>()) {}
Context::~Context() = default;

Context& Context::process() {
  if (Context* made = process_context().load()) return *made;
  auto mine = std::make_unique<Context>();
  // A forked child has no service thread: it gets a context of its own.
  call_in_forked_child([] { process_context().store(nullptr); });
  Context* expected = nullptr;
  if (process_context().compare_exchange_strong(expected, mine.get())) return *mine.release();
  return *expected;
}

}  // namespace ropewalk::bootstrap
