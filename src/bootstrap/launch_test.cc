#include "bootstrap/launch.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bootstrap/test_support.h"
#include "core/socket.h"

namespace ropewalk::bootstrap {
namespace {

LaunchEnvironment found(const EnvironmentMap& environment) {
  return detect(environment, "42.4711");
}

std::string refusal(const EnvironmentMap& environment) {
  const auto [code, text] = error_of([&] { (void)found(environment); });
  EXPECT_EQ(code, Errc::kInvalidArgument);
  return text;
}

TEST(Launch, NoLauncherIsOneRank) {
  const LaunchEnvironment alone = found({{"PATH", "/bin"}, {"RANK", "3"}});
  EXPECT_EQ(alone.launcher, "none");
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.size, 1);
}

TEST(Launch, Torchrun) {
  const LaunchEnvironment env = found({{"RANK", "5"},
                                       {"WORLD_SIZE", "8"},
                                       {"LOCAL_RANK", "1"},
                                       {"LOCAL_WORLD_SIZE", "4"},
                                       {"MASTER_ADDR", "node1"},
                                       {"MASTER_PORT", "29500"},
                                       {"TORCHELASTIC_RUN_ID", "none"},
                                       {"SLURM_PROCID", "1"},
                                       {"SLURM_NTASKS", "2"},
                                       {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(env.launcher, "torchrun");
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_TRUE(env.several_hosts());
  EXPECT_EQ(env.master, "node1:29501");
  EXPECT_NE(env.job.find("29500"), std::string::npos);
  const auto [code, text] = error_of([&] { (void)rendezvous(env, quiet_config(), in_ms(10)); });
  EXPECT_EQ(code, Errc::kInvalidUsage);
  EXPECT_NE(text.find("ROPEWALK_SECRET_FILE"), std::string::npos) << text;
}

TEST(Launch, OpenMpi) {
  const LaunchEnvironment env = found({{"OMPI_COMM_WORLD_RANK", "1"},
                                       {"OMPI_COMM_WORLD_SIZE", "2"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                       {"PMIX_NAMESPACE", "1597177857"}});
  EXPECT_EQ(env.launcher, "Open MPI");
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.size, 2);
  EXPECT_FALSE(env.several_hosts());
  EXPECT_NE(env.local_job.find("1597177857"), std::string::npos);
}

TEST(Launch, Mpich) {
  const LaunchEnvironment env = found(
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(env.launcher, "MPICH");
  EXPECT_EQ(env.rank, 2);
  EXPECT_TRUE(env.several_hosts());
  EXPECT_TRUE(env.job.empty());
  EXPECT_NE(env.local_job.find("42.4711"), std::string::npos);
}

TEST(Launch, Slurm) {
  EnvironmentMap variables = {{"SLURM_PROCID", "3"},
                              {"SLURM_NTASKS", "4"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_JOB_ID", "77"},
                              {"SLURM_NNODES", "2"}};
  EXPECT_EQ(found(variables).launcher, "none");  // a batch script
  variables["SLURM_STEP_ID"] = "0";
  const LaunchEnvironment env = found(variables);
  EXPECT_EQ(env.launcher, "Slurm");
  EXPECT_EQ(env.rank, 3);
  EXPECT_TRUE(env.several_hosts());
  variables["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_FALSE(found(variables).several_hosts());
}

TEST(Launch, OwnVariablesComeFirst) {
  const LaunchEnvironment env = found({{"ROPEWALK_RANK", "1"},
                                       {"ROPEWALK_WORLD_SIZE", "3"},
                                       {"ROPEWALK_RENDEZVOUS", "file:/x"},
                                       {"RANK", "7"},
                                       {"WORLD_SIZE", "8"}});
  EXPECT_EQ(env.launcher, "Ropewalk");
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.size, 3);
  EXPECT_EQ(env.rendezvous, "file:/x");
}

TEST(Launch, WrongVariablesAreNamed) {
  using Words = std::vector<std::string>;
  const std::vector<std::pair<EnvironmentMap, Words>> cases = {
      {{{"ROPEWALK_RANK", "1"}}, {"ROPEWALK_RANK", "ROPEWALK_WORLD_SIZE"}},
      {{{"ROPEWALK_WORLD_SIZE", "1"}}, {"ROPEWALK_RANK", "ROPEWALK_WORLD_SIZE"}},
      {{{"ROPEWALK_RENDEZVOUS", "local:x"}}, {"ROPEWALK_RENDEZVOUS", "ROPEWALK_RANK"}},
      {{{"RANK", "1"}, {"MASTER_ADDR", "x"}}, {"RANK", "WORLD_SIZE"}},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK=\"one\""}},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}}, {"RANK=\"\""}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2", "WORLD_SIZE=2"}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK=-1"}},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}, {"PMI_SIZE=0 is not a number of ranks"}},
      {{{"PMI_RANK", "0"}}, {"PMI_RANK", "PMI_SIZE"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}}, {"LOCAL_WORLD_SIZE=4"}},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"}},
       {"RANK=0", "OMPI_COMM_WORLD_RANK=1", "contradict"}},
  };
  for (const auto& [environment, words] : cases) {
    const std::string text = refusal(environment);
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
    }
  }
}

TEST(Launch, LaunchersThatAgreeAreFine) {
  EXPECT_EQ(found({{"RANK", "1"},
                   {"WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"}})
                .rank,
            1);
}

// ---- rendezvous
// ----------------------------------------------------------------------------------

/// A folder for the test, removed after it.
class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "ropewalk-test-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }
  [[nodiscard]] std::string secret(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    chmod(file(name).c_str(), 0600);
    return file(name);
  }

 private:
  std::string path_;
};

std::string unused_port() {
  SocketAddress any = resolve("127.0.0.1:1").front();
  any.set_port(0);
  SocketAddress bound;
  (void)listen_on(any, &bound);
  return bound.text();
}

/// `size` threads meet and join, `rounds` times in a row.
void meet_and_join(LaunchEnvironment environment, int size, int rounds = 1) {
  std::vector<std::thread> threads;
  environment.size = size;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([=] {
      LaunchEnvironment mine = environment;
      mine.rank = rank;
      try {
        Context context;
        for (int round = 0; round < rounds; ++round) {
          const Meeting meeting = rendezvous(mine, quiet_config(), soon(), context);
          const auto self =
              Bootstrap::join(meeting.id(), rank, size, quiet_config(), soon(), context);
          self->barrier(soon());
          self->leave();
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

LaunchEnvironment named(const std::string& rendezvous) {
  LaunchEnvironment environment;
  environment.launcher = "Ropewalk";
  environment.rendezvous = rendezvous;
  return environment;
}

std::string own_name(const char* test) { return fmt::format("local:{}-{}", test, getpid()); }

TEST(Rendezvous, OnOneHost) { meet_and_join(named(own_name("one-host")), 4); }
TEST(Rendezvous, OnOneHostAgainAndAgain) { meet_and_join(named(own_name("again")), 3, 5); }
TEST(Rendezvous, Alone) { meet_and_join(LaunchEnvironment{}, 1); }

TEST(Rendezvous, ByFile) {
  const Folder folder;
  LaunchEnvironment environment = named("file:" + folder.file("id"));
  environment.job = "job 7";
  meet_and_join(environment, 3);
  EXPECT_TRUE(folder.empty());
}

/// The file of a job that has ended.
void leave_file(const std::string& path) {
  Context gone;
  const UniqueId id = make_unique_id(quiet_config(), gone);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(id.data()), id.size());
  chmod(path.c_str(), 0600);
}

TEST(Rendezvous, AFileLeftByAKilledJobIsNotTaken) {
  const Folder folder;
  leave_file(folder.file("id"));
  meet_and_join(named("file:" + folder.file("id")), 3);
}

TEST(Rendezvous, AnErrorInTheFileIsNamed) {
  const Folder folder;
  LaunchEnvironment environment = named("file:" + folder.file("id"));
  environment.rank = 1;
  environment.size = 2;
  Context context;
  const auto told = [&] {
    const auto [code, text] =
        error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(100), context); });
    EXPECT_EQ(code, Errc::kTimeout);
    return text;
  };
  EXPECT_TRUE(told().ends_with("it is not there"));
  leave_file(folder.file("id"));
  EXPECT_TRUE(told().ends_with("the id in it is not valid any more"));
  std::filesystem::resize_file(folder.file("id"), 10);
  EXPECT_TRUE(told().ends_with("the id in it is not valid any more"));
}

TEST(Rendezvous, AFileThatOthersCanWriteIsNotTaken) {
  const Folder folder;
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  std::ofstream(folder.file("id"), std::ios::binary)
      .write(reinterpret_cast<const char*>(id.data()), id.size());
  chmod(folder.file("id").c_str(), 0666);
  LaunchEnvironment environment = named("file:" + folder.file("id"));
  environment.rank = 1;
  environment.size = 2;
  const auto [code, text] =
      error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(50), context); });
  EXPECT_EQ(code, Errc::kTimeout);
  EXPECT_NE(text.find("others may"), std::string::npos) << text;
}

TEST(Rendezvous, ByTcpWithASecretFile) {
  const Folder folder;
  LaunchEnvironment environment = named("tcp://" + unused_port());
  environment.secret_file = folder.secret("secret", "sixteen bytes and more");
  meet_and_join(environment, 4, 2);
}

TEST(Rendezvous, ByTcpLeavesNoConnection) {
  const Folder folder;
  LaunchEnvironment environment = named("tcp://" + unused_port());
  environment.size = 3;
  environment.secret_file = folder.secret("secret", "sixteen bytes and more");
  const auto meet = [&] {
    Context serving;
    environment.rank = 0;
    const Meeting meeting = rendezvous(environment, quiet_config(), soon(), serving);
    for (environment.rank = 1; environment.rank < environment.size; ++environment.rank) {
      Context asking;
      EXPECT_EQ(rendezvous(environment, quiet_config(), soon(), asking).id(), meeting.id());
    }
  };
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  meet();  // what stays open from the first time on does so once
  const auto before = descriptors();
  meet();
  EXPECT_EQ(descriptors(), before);
}

TEST(Rendezvous, AnotherSecretGetsNoId) {
  const Folder folder;
  Context context;
  LaunchEnvironment environment = named("tcp://" + unused_port());
  environment.size = 2;
  environment.secret_file = folder.secret("right", "sixteen bytes and more");
  const Meeting meeting = rendezvous(environment, quiet_config(), soon(), context);
  environment.rank = 1;
  environment.secret_file = folder.secret("wrong", "sixteen other bytes and");
  const auto [code, text] =
      error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(50), context); });
  EXPECT_EQ(code, Errc::kTimeout);
  EXPECT_NE(text.find("ROPEWALK_SECRET_FILE"), std::string::npos) << text;
}

TEST(Rendezvous, UnusableSecretFilesAreRefused) {
  const Folder folder;
  LaunchEnvironment environment = named("tcp://127.0.0.1:1");
  environment.size = 2;
  const auto refused = [&](const std::string& path) {
    environment.secret_file = path;
    const auto [code, text] =
        error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(10)); });
    EXPECT_TRUE(code == Errc::kInvalidArgument || code == Errc::kInvalidUsage) << text;
    EXPECT_NE(text.find("ROPEWALK_SECRET_FILE"), std::string::npos) << text;
    return text;
  };
  refused("");
  refused(folder.file("none"));
  refused(folder.secret("short", "short"));
  const std::string open = folder.secret("open", "sixteen bytes and more");
  chmod(open.c_str(), 0644);
  EXPECT_NE(refused(open).find("chmod 600"), std::string::npos);
}

TEST(Rendezvous, MissingRanksAreNamed) {
  LaunchEnvironment environment = named(own_name("missing"));
  environment.size = 3;
  Context context;
  const auto [code, text] =
      error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(30), context); });
  EXPECT_EQ(code, Errc::kTimeout);
  EXPECT_NE(text.find("ranks 1, 2 of 3"), std::string::npos) << text;
  environment.rank = 2;
  const auto [other_code, other_text] =
      error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(30), context); });
  EXPECT_EQ(other_code, Errc::kTimeout);
  EXPECT_NE(other_text.find("rank 0"), std::string::npos) << other_text;
}

TEST(Rendezvous, DifferentSizesAreErrorsOnBoth) {
  LaunchEnvironment environment = named(own_name("sizes"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      LaunchEnvironment mine = environment;
      mine.rank = rank;
      mine.size = 2 + rank;
      Context context;
      const auto [code, text] =
          error_of([&] { (void)rendezvous(mine, quiet_config(), soon(), context); });
      EXPECT_EQ(code, Errc::kInvalidArgument);
      EXPECT_NE(text.find("rank 1 counts 3 ranks, rank 0 counts 2"), std::string::npos) << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Rendezvous, TwoProcessesOfOneRankAreNamed) {
  LaunchEnvironment environment = named(own_name("twice"));
  environment.size = 3;
  environment.rank = 1;
  std::vector<pid_t> asking;
  for (int i = 0; i < 2; ++i) {
    asking.push_back(fork());
    if (asking.back() != 0) continue;
    Context context;
    (void)error_of([&] { (void)rendezvous(environment, quiet_config(), soon(), context); });
    pause();  // one of them got its answer, and is alive
  }
  environment.rank = 0;
  Context context;
  const auto [code, text] =
      error_of([&] { (void)rendezvous(environment, quiet_config(), soon(), context); });
  EXPECT_EQ(code, Errc::kInvalidArgument);
  EXPECT_NE(text.find("two processes are rank 1 of 3"), std::string::npos) << text;
  for (const pid_t pid : asking) {
    EXPECT_NE(text.find(std::to_string(pid)), std::string::npos) << text;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

TEST(Rendezvous, UnknownMethodsAreRefused) {
  for (const char* method : {"nowhere", "local:", "file:", "tcp://", "tcp://host", "udp://x:1"}) {
    LaunchEnvironment environment = named(method);
    environment.size = 2;
    const Folder folder;
    environment.secret_file = folder.secret("s", "sixteen bytes and more");
    EXPECT_EQ(error_of([&] { (void)rendezvous(environment, quiet_config(), in_ms(10)); }).first,
              Errc::kInvalidArgument)
        << method;
  }
}

// ---- real launchers
// ------------------------------------------------------------------------------

/// Not a test of its own: what the launchers below start.
TEST(LauncherRank, DISABLED_JoinsAndCounts) {
  const LaunchEnvironment env = detect();
  const Meeting meeting = rendezvous(env, quiet_config(), soon());
  const auto self = Bootstrap::join(meeting.id(), env.rank, env.size, quiet_config(), soon());
  std::vector<std::byte> all(static_cast<std::size_t>(env.size));
  all[static_cast<std::size_t>(env.rank)] = static_cast<std::byte>(env.rank + 1);
  self->all_gather(all, 1, soon());
  for (int rank = 0; rank < env.size; ++rank) {
    ASSERT_EQ(all[static_cast<std::size_t>(rank)], static_cast<std::byte>(rank + 1));
  }
  self->leave();
  std::printf("%s rank %d of %d\n", env.launcher.c_str(), env.rank, env.size);
}

void run_under(const std::string& command, const std::string& launcher) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string line = command + " " + program +
                           " --gtest_filter=LauncherRank.* --gtest_also_run_disabled_tests 2>&1";
  FILE* pipe = popen(line.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[512];
  while (fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
  EXPECT_EQ(pclose(pipe), 0) << output;
  for (const char* rank : {"rank 0 of 3", "rank 1 of 3", "rank 2 of 3"}) {
    EXPECT_NE(output.find(launcher + " " + rank), std::string::npos) << output;
  }
}

bool installed(const std::string& program) {
  return std::system(("command -v " + program + " > /dev/null 2>&1").c_str()) == 0;
}

TEST(Launchers, OpenMpi) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  run_under("mpirun.openmpi --allow-run-as-root --oversubscribe -n 3", "Open MPI");
}

TEST(Launchers, Mpich) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "mpirun.mpich is not installed";
  run_under("mpirun.mpich -n 3", "MPICH");
  run_under("mpirun.mpich -n 3 sh -c '\"$@\"' sh", "MPICH");  // a script in between
}

}  // namespace
}  // namespace ropewalk::bootstrap
