// Loaded into a server by LD_PRELOAD: a wall clock that jumps, and a disk that forgets what was not synced.
//
// FAULTS_CLOCK   a file of 8 bytes: seconds that are added to the wall clock, read at each call.
// FAULTS_FOLDER  a folder whose files lose what was not synced when the power is cut.
// FAULTS_DURABLE where what was synced is copied: inodes/N the content of a file, folders/N the names of a folder.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_s;
static const char *folder, *durable;
static pthread_mutex_t copying = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    const char *clock = getenv("FAULTS_CLOCK");
    int file = clock ? open(clock, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        offset_s = page == MAP_FAILED ? NULL : page;
        close(file);
    }
    folder = getenv("FAULTS_FOLDER");
    durable = getenv("FAULTS_DURABLE");
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, which, now);
    if (!failed && offset_s && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return failed;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

static void write_names(const char *path, const char *into) {
    char part[4200];
    snprintf(part, sizeof part, "%s.part", into);
    DIR *names = opendir(path);
    FILE *list = fopen(part, "w");
    struct dirent *one;
    if (list) fprintf(list, "%s\n", path);
    while (names && list && (one = readdir(names)))
        if (one->d_type == DT_REG) fprintf(list, "%ju %s\n", (uintmax_t)one->d_ino, one->d_name);
    if (names) closedir(names);
    if (list) fclose(list);
    rename(part, into);
}

static void copy(int from, const char *path, off_t size, const char *into) {
    size_t name = strlen(path);
    int grows = name > 4 && !strcmp(path + name - 4, ".log");
    // A file that SQLite has is read as it has it: to close another one would drop its locks.
    int writes_only = (fcntl(from, F_GETFL) & O_ACCMODE) == O_WRONLY;
    int to = open(into, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    int source = writes_only ? open(path, O_RDONLY | O_CLOEXEC) : from;
    struct stat known;
    off_t at = 0;
    char data[65536];
    if (to >= 0 && source >= 0 && !fstat(to, &known)) {
        if (grows && known.st_size <= size) at = known.st_size;
        while (at < size) {
            ssize_t part = pread(source, data, size - at < (off_t)sizeof data ? (size_t)(size - at) : sizeof data, at);
            if (part <= 0 || pwrite(to, data, (size_t)part, at) != part) break;
            at += part;
        }
        if (ftruncate(to, size)) abort();
    }
    if (to >= 0) close(to);
    if (writes_only && source >= 0) close(source);
}

static void synced(int file) {
    char link[64], path[4096], into[4160];
    struct stat found;
    if (!folder || !durable || fstat(file, &found)) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || strncmp(path, folder, strlen(folder))) return;
    path[length] = 0;
    int is_folder = S_ISDIR(found.st_mode);
    snprintf(into, sizeof into, "%s/%s/%ju", durable, is_folder ? "folders" : "inodes", (uintmax_t)found.st_ino);
    pthread_mutex_lock(&copying);
    if (is_folder) write_names(path, into);
    else copy(file, path, found.st_size, into);
    pthread_mutex_unlock(&copying);
}

int fsync(int file) {
    int failed = (int)syscall(SYS_fsync, file);
    if (!failed) synced(file);
    return failed;
}

int fdatasync(int file) {
    int failed = (int)syscall(SYS_fdatasync, file);
    if (!failed) synced(file);
    return failed;
}
