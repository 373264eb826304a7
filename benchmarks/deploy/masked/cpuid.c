/* Run a library as on an older x86 processor: its `cpuid` instructions answer without some features.

   For the loader (LD_AUDIT), which calls la_objopen before a library's first line runs. Every `cpuid` of the libraries
   named in MASKED_CPUID_SITES becomes `ud2`; the handler of SIGILL asks the processor and clears the bits named in
   MASKED_CPUID_BITS. Nothing else of the library changes, and the rest of its code runs at full speed.

   MASKED_CPUID_SITES: a text file, one "PATH ADDRESS" a line, the address as the library's own, in hexadecimal.
   MASKED_CPUID_BITS: "LEAF:SUBLEAF:REGISTER:MASK ..." in hexadecimal, registers 0 to 3 for eax, ebx, ecx and edx. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define SITES 4096
#define BITS 64

static uintptr_t patched[SITES];
static int sites;
static struct { unsigned leaf, subleaf, which, mask; } bits[BITS];
static int masks;

static void answer(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t at = (uintptr_t)registers[REG_RIP];
    int known = 0;
    (void)info;
    for (int i = 0; i < sites && !known; i++) known = patched[i] == at;
    if (!known) { /* Somebody else's bad instruction: as without us. */
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX], value[4];
    __cpuid_count(leaf, subleaf, value[0], value[1], value[2], value[3]);
    for (int i = 0; i < masks; i++)
        if (bits[i].leaf == leaf && (leaf != 7 || bits[i].subleaf == subleaf)) value[bits[i].which] &= ~bits[i].mask;
    registers[REG_RAX] = value[0];
    registers[REG_RBX] = value[1];
    registers[REG_RCX] = value[2];
    registers[REG_RDX] = value[3];
    registers[REG_RIP] += 2;
}

static void die(const char *what, const char *path) {
    fprintf(stderr, "masked cpuid: %s: %s\n", what, path);
    _exit(126);
}

static void patch(unsigned char *at, const char *path) {
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)at & ~(size - 1);
    uintptr_t length = ((uintptr_t)at + 2 - first + size - 1) & ~(size - 1);
    if (sites == SITES) die("too many instructions", path);
    if (at[0] != 0x0f || at[1] != 0xa2) die("the library is not the one that was disassembled", path);
    if (mprotect((void *)first, length, PROT_READ | PROT_WRITE | PROT_EXEC)) die("cannot write its code", path);
    at[1] = 0x0b; /* ud2 */
    if (mprotect((void *)first, length, PROT_READ | PROT_EXEC)) die("cannot protect its code", path);
    patched[sites++] = (uintptr_t)at;
}

unsigned la_version(unsigned version) {
    const char *left = getenv("MASKED_CPUID_BITS");
    struct sigaction action;
    int read = 0;
    for (; left && masks < BITS; left += read, masks++)
        if (sscanf(left, " %x:%x:%x:%x%n", &bits[masks].leaf, &bits[masks].subleaf, &bits[masks].which,
                   &bits[masks].mask, &read) != 4 || bits[masks].which > 3)
            break;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, NULL);
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie) {
    const char *list = getenv("MASKED_CPUID_SITES");
    char path[PATH_MAX], real[PATH_MAX];
    unsigned long long address;
    (void)namespace, (void)cookie;
    if (!list || !map->l_name || !map->l_name[0] || !realpath(map->l_name, real)) return 0;
    FILE *file = fopen(list, "r");
    if (!file) die("cannot read", list);
    while (fscanf(file, "%4095s %llx", path, &address) == 2)
        if (!strcmp(path, real)) patch((unsigned char *)map->l_addr + address, path);
    fclose(file);
    return 0;
}
