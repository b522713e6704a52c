// A listener on an adapter: a data interrupt, through which connecting ends greet.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "transport/window/driver.h"
#include "transport/window/sisci/path.h"

namespace ropewalk::transport::window::sisci {

class SisciAcceptor final : public Acceptor {
 public:
  /// @throws Error kSystem
  SisciAcceptor(Context& context, Memory& memory, const PathOptions& options, WindowSizes sizes);
  ~SisciAcceptor() override;
  SisciAcceptor(const SisciAcceptor&) = delete;
  SisciAcceptor& operator=(const SisciAcceptor&) = delete;
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<Path> accept() override;

 private:
  // Ends that have greeted, until their windows are connected.
  struct Guest {
    Greeting greeting;
    std::chrono::steady_clock::time_point since;
  };
  void take_greetings();
  void refuse(const Greeting& greeting);
  std::unique_ptr<Path> let_in(const Guest& guest, bool& keep);

  Context& context_;
  Memory& memory_;
  const PathOptions options_;
  const WindowSizes sizes_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  LocalDataInterrupt interrupt_ = nullptr;
  ListenerAddress address_;
  Handle handle_{};
  std::vector<Guest> guests_;
};

}  // namespace ropewalk::transport::window::sisci
