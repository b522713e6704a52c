#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"

namespace ropewalk {
namespace {

using ::testing::HasSubstr;
using testing::in_child;
using testing::message_of;
using ::testing::Not;

// The log is one for a process: each test has a process of its own.
class LogFile : public ::testing::Test {
 protected:
  LogFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("ropewalk-log-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~LogFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // Of the only file there.
  std::string text() const {
    std::filesystem::directory_iterator at(folder_);
    if (at == std::filesystem::directory_iterator()) return "no file";
    std::ifstream file(at->path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path folder_;
};

TEST_F(LogFile, LevelsAndSubsystemsChoose) {
  ASSERT_EQ(in_child([&] {
              log::configure("INFO", "NET,SHM", path("log"));
              log::warn("warning {}", 1);
              log::info(log::kNet, "net {}", 2);
              log::info(log::kShm, "shm {}", 3);
              log::info(log::kInit, "init {}", 4);
              log::configure("WARN", "^NET", path("log"));
              log::info(log::kInit, "hidden {}", 5);
              log::configure("INFO", "^NET", path("log"));
              log::info(log::kNet, "net {}", 6);
              log::info(log::kInit, "init {}", 7);
              log::configure("INFO", "", path("log"));
              log::info(log::kNet, "net {}", 8);
              log::info(log::kEnv, "env {}", 9);
              log::configure("NONE", "", path("log"));
              log::warn("warning {}", 10);
              return 0;
            }),
            0);
  for (const char* there :
       {"WARN warning 1\n", "INFO net 2\n", "INFO shm 3\n", "init 7", "env 9"}) {
    EXPECT_THAT(text(), HasSubstr(there));
  }
  for (const char* absent : {"init 4", "hidden", "net 6", "net 8", "warning 10"}) {
    EXPECT_THAT(text(), Not(HasSubstr(absent)));
  }
}

TEST_F(LogFile, NameHasHostAndProcess) {
  std::string host(256, '\0');
  gethostname(host.data(), host.size() - 1);
  host = host.c_str();
  ASSERT_EQ(in_child([&] {
              log::configure("VERSION", "", path("a%%-%p-%h.log"));
              const std::string name =
                  "a%-" + std::to_string(getpid()) + "-" + host.substr(0, host.find('.')) + ".log";
              return std::filesystem::exists(path(name)) ? 0 : 1;
            }),
            0);
}

TEST_F(LogFile, IsOpenedInAProcessWithoutStandardInput) {
  EXPECT_EQ(in_child([&] {
              close(STDIN_FILENO);  // as daemons do: the file gets its number
              log::configure("WARN", "", path("log"));
              log::warn("still here");
              return 0;
            }),
            0);
  EXPECT_THAT(text(), HasSubstr("still here"));
}

TEST_F(LogFile, AnErrorIsNamedAndChangesNothing) {
  ASSERT_EQ(
      in_child([&] {
        log::configure("WARN", "", path("log"));
        const auto refuse = [](const char* level, const char* subsystems, const std::string& file) {
          return message_of([&] { log::configure(level, subsystems, file); },
                            Errc::kInvalidArgument);
        };
        EXPECT_THAT(refuse("LOUD", "", ""), HasSubstr("\"LOUD\""));
        EXPECT_THAT(refuse("NONE", "NET,NOT", ""), HasSubstr("\"NOT\""));
        EXPECT_THAT(refuse("NONE", "", path("%x")), HasSubstr("\"%x\""));
        EXPECT_THAT(message_of([&] { log::configure("NONE", "", path("no/file")); }, Errc::kSystem),
                    HasSubstr(path("no/file")));
        log::warn("as before");
        return 0;
      }),
      0);
  EXPECT_THAT(text(), HasSubstr("as before"));
}

struct Heard {
  std::vector<std::string> sink;
  std::vector<std::string> listener;
};
Heard& heard() {
  static Heard lines;
  return lines;
}

TEST_F(LogFile, SinkTakesAllUpToInfoAndListenerHearsWarnings) {
  ASSERT_EQ(in_child([&] {
              log::configure("NONE", "", path("log"));
              log::set_listener([](log::Level, std::uint32_t, const char* line) {
                heard().listener.emplace_back(line);
              });
              log::warn("not shown");
              log::set_sink([](log::Level, std::uint32_t, const char* line) {
                heard().sink.emplace_back(line);
              });
              log::warn("warning");
              log::info(log::kCall, "told");
              EXPECT_FALSE(log::enabled(log::Level::kTrace, log::kAll));
              log::set_listener(nullptr);
              log::warn("not heard");
              log::set_sink(nullptr);
              log::warn("nowhere");
              EXPECT_THAT(heard().listener, ::testing::ElementsAre("not shown", "warning"));
              EXPECT_THAT(heard().sink, ::testing::ElementsAre("warning", "told", "not heard"));
              return 0;
            }),
            0);
  EXPECT_EQ(text(), "");
}

}  // namespace
}  // namespace ropewalk
