// Keys and certificates for tests, in a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "secure/keys.h"

namespace towline::secure::testing {

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "towline-keys-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
    return at(name);
  }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Where not, tests of secured connections are skipped.
inline bool has_tls() {
  try {
    const Folder folder;
    (void)Keys::read({folder.file("key", std::string(40, 'k')), "", "", ""});
    return true;
  } catch (const Error&) {
    return false;
  }
}
#define TOWLINE_NEEDS_TLS()                   \
  if (!::towline::secure::testing::has_tls()) \
  GTEST_SKIP() << "OpenSSL 3 is not there, or was not when this was built"

inline std::string key_text(char letter = 'k') { return std::string(40, letter) + "\n"; }

// An authority, and certificates that it signs; made by the openssl program. False: there is none.
class Authority {
 public:
  explicit Authority(const Folder& folder, const std::string& name = "ca") : folder_(folder), name_(name) {
    good_ =
        run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
            name_ + " -keyout " + name_ + ".key -out " + name_ + ".pem");
  }
  bool good() const { return good_; }
  // `names`: "DNS:a.example.com,URI:spiffe://example.com/a".
  Keys::Files sign(const std::string& who, const std::string& names = {}) {
    folder_.file(who + ".ext", names.empty() ? "" : "subjectAltName=" + names + "\n");
    good_ = good_ &&
            run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + who +
                " -keyout " + who + ".key -out " + who + ".csr") &&
            run("openssl x509 -req -in " + who + ".csr -CA " + name_ + ".pem -CAkey " + name_ +
                ".key -CAcreateserial -days 2 -extfile " + who + ".ext -out " + who + ".pem");
    return {"", folder_.at(who + ".pem"), folder_.at(who + ".key"), folder_.at(name_ + ".pem")};
  }

 private:
  bool run(const std::string& command) const {
    return std::system(("cd " + folder_.path() + " && " + command + " >>log 2>&1").c_str()) == 0;
  }
  const Folder& folder_;
  const std::string name_;
  bool good_ = false;
};

}  // namespace towline::secure::testing
