/* Mounts a folder a second time, with operations that fail: for the campaign.

   filesystem FOLDER FAULTS MOUNT [OPTIONS OF FUSE]

   A file in the folder FAULTS has the name of an operation, such as `flock`, and
   the number of the error that it ends in. A word may follow: then only paths that
   contain it are hit. All else is passed on to FOLDER. */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <errno.h>
#include <fuse.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

static int folder, faults;

static int fault(const char *operation, const char *path) {
  char text[256] = "", word[256] = "";
  int number = 0, file = openat(faults, operation, O_RDONLY);
  if (file < 0) return 0;
  if (read(file, text, sizeof text - 1) > 0) sscanf(text, "%d %255s", &number, word);
  close(file);
  return path && !strstr(path, word) ? 0 : -number;
}

static const char *at(const char *path) { return path[1] ? path + 1 : "."; }

#define PASS(operation, path, call) \
  int wrong = fault(operation, path); \
  if (wrong) return wrong; \
  long done = (call); \
  return done < 0 ? -errno : (int)done;
#define NOW struct fuse_file_info *now

static int stat_(const char *path, struct stat *out, NOW) {
  PASS("stat", path, now ? fstat(now->fh, out)
                         : fstatat(folder, at(path), out, AT_SYMLINK_NOFOLLOW))
}
static int readlink_(const char *path, char *out, size_t size) {
  ssize_t length = readlinkat(folder, at(path), out, size - 1);
  if (length < 0) return -errno;
  out[length] = 0;
  return 0;
}
static int mkdir_(const char *path, mode_t mode) {
  PASS("mkdir", path, mkdirat(folder, at(path), mode))
}
static int unlink_(const char *path) { PASS("unlink", path, unlinkat(folder, at(path), 0)) }
static int rmdir_(const char *path) {
  PASS("rmdir", path, unlinkat(folder, at(path), AT_REMOVEDIR))
}
static int symlink_(const char *to, const char *path) {
  PASS("symlink", path, symlinkat(to, folder, at(path)))
}
static int rename_(const char *from, const char *to, unsigned flags) {
  PASS("rename", to, renameat2(folder, at(from), folder, at(to), flags))
}
static int link_(const char *from, const char *to) {
  PASS("link", to, linkat(folder, at(from), folder, at(to), 0))
}
static int chmod_(const char *path, mode_t mode, NOW) {
  (void)now;
  PASS("chmod", path, fchmodat(folder, at(path), mode, 0))
}
static int truncated(int file, off_t size) {
  int wrong = file < 0 || ftruncate(file, size), error = errno;
  if (file >= 0) close(file);
  errno = error;
  return -wrong;
}
static int truncate_(const char *path, off_t size, NOW) {
  PASS("truncate", path,
       truncated(now ? dup(now->fh) : openat(folder, at(path), O_WRONLY), size))
}
static int utimens_(const char *path, const struct timespec times[2], NOW) {
  (void)now;
  PASS("utimens", path, utimensat(folder, at(path), times, AT_SYMLINK_NOFOLLOW))
}
static int open_(const char *path, NOW) {
  PASS("open", path, (now->fh = openat(folder, at(path), now->flags)) == -1ul ? -1 : 0)
}
static int create_(const char *path, mode_t mode, NOW) {
  PASS("create", path,
       (now->fh = openat(folder, at(path), now->flags, mode)) == -1ul ? -1 : 0)
}
static int read_(const char *path, char *out, size_t size, off_t from, NOW) {
  PASS("read", path, pread(now->fh, out, size, from))
}
static int write_(const char *path, const char *in, size_t size, off_t to, NOW) {
  PASS("write", path, pwrite(now->fh, in, size, to))
}
static int flush_(const char *path, NOW) { PASS("flush", path, close(dup(now->fh))) }
static int release_(const char *path, NOW) { (void)path; return close(now->fh); }
static int fsync_(const char *path, int data, NOW) {
  (void)data;
  PASS("fsync", path, fsync(now->fh))
}
static int flock_(const char *path, NOW, int how) { PASS("flock", path, flock(now->fh, how)) }
static int statfs_(const char *path, struct statvfs *out) {
  PASS("statfs", path, fstatvfs(folder, out))
}
static int readdir_(const char *path, void *out, fuse_fill_dir_t fill, off_t from, NOW,
                    enum fuse_readdir_flags flags) {
  (void)from, (void)now, (void)flags;
  int wrong = fault("readdir", path), file;
  if (wrong) return wrong;
  if ((file = openat(folder, at(path), O_RDONLY | O_DIRECTORY)) < 0) return -errno;
  DIR *list = fdopendir(file);
  for (struct dirent *one; (one = readdir(list));) fill(out, one->d_name, NULL, 0, 0);
  return closedir(list);
}
static void *init_(struct fuse_conn_info *with, struct fuse_config *config) {
  (void)with;
  config->use_ino = 1;
  return NULL;
}

int main(int count, char **words) {
  struct fuse_operations operations = {
      .getattr = stat_, .readlink = readlink_, .mkdir = mkdir_, .unlink = unlink_,
      .rmdir = rmdir_, .symlink = symlink_, .rename = rename_, .link = link_,
      .chmod = chmod_, .truncate = truncate_, .utimens = utimens_, .open = open_,
      .create = create_, .read = read_, .write = write_, .flush = flush_,
      .release = release_, .fsync = fsync_, .flock = flock_, .statfs = statfs_,
      .readdir = readdir_, .init = init_};
  if (count < 4) return 2;
  folder = open(words[1], O_RDONLY | O_DIRECTORY);
  faults = open(words[2], O_RDONLY | O_DIRECTORY);
  if (folder < 0 || faults < 0) return 2;
  words[2] = words[0];
  prctl(PR_SET_PDEATHSIG, SIGTERM); /* Unmounts if what started it is killed. */
  return fuse_main(count - 2, words + 2, &operations, NULL);
}
