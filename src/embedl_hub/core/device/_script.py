"""The shell scripts we run on a board, and how a word gets there without being read as a command.

Every script takes its data as arguments and never as text pasted into it. They are written for any
POSIX sh (dash, busybox ash, bash); what a board may lack is asked for first (see CAPABILITIES).
"""

from __future__ import annotations

import re

from embedl_hub.errors import ConfigError

BEAT_EVERY_S = 5.0
BEAT_LIMIT_S = 20
# A silent client's commands are ended first, with two seconds between TERM and KILL, its lease after them.
LEASE_LIMIT_S = 24
# The client gives its lease up before the board does: see RemoteLease.
LOST_AFTER_S = 18.0
STOP = b"stop\n"


def quote(word: str) -> str:
    r"""Quote a word for the login shell of the other side, POSIX or fish.

    shlex.quote is not enough: fish reads ``\'`` inside single quotes as an escaped quote, so a file name
    could break out. Backslashes and quotes therefore stand in double quotes, where both agree.
    """
    if "\0" in word:
        raise ConfigError(f"An argument must not contain NUL: {word!r}.")
    # Bare words leave out what some shell expands: zsh reads =name as a path, fish %self as a process.
    if re.fullmatch(r"[A-Za-z0-9_./:@+,-]+", word):
        return word
    return "'" + re.sub(r"['\\]", lambda found: "'\"" + found[0].replace("\\", "\\\\") + "\"'", word) + "'"


def command_line(script: str, label: str, *arguments: str, shell: str = "sh") -> str:
    """Return one command for the login shell: the script in sh, with its arguments."""
    # exec: our sh takes over the login shell's process, which leads the session's process group.
    return " ".join(["exec", shell, "-c", *map(quote, (script, label, *arguments))])


# Asked once per connection. One line without quotes inside: it must survive any login shell, csh included.
CAPABILITIES = (
    "echo shell=$SHELL; "
    "for tool in sha256sum openssl shasum tar flock bash; do "
    "command -v $tool >/dev/null 2>&1 && echo tool=$tool; done; "
    "(echo | { read -t 1 x; }) 2>/dev/null && echo timed_read=yes; "
    "grep -qwm1 aes /proc/cpuinfo 2>/dev/null && echo aes=yes; "
    "echo end=yes"
)

# Ends the process group $2 when its client is gone (end of file on stdin, or no heartbeat for $1 seconds) or asks for
# it. End of file also follows the normal end of the command, which needs nothing. Where something between sshd and us
# leads the group, the processes below $2 are ended instead. No "--" before a group: dash and busybox take it for a pid.
WATCH = """\
trap "" TERM
while read -r ${1:+-t "$1"} beat && [ "$beat" != stop ]; do :; done
[ "$beat" = stop ] || kill -0 "$2" || exit 0
below=$(cat "/proc/$2/task/$2/children")
end() {
  kill "-$1" "-$2" && return
  for pid in $below "$2"; do [ "$pid" = "$$" ] || kill "-$1" "$pid"; done
}
end TERM "$2"
sleep 2
end KILL "$2"
"""

# $1 heartbeat limit or nothing, $2 shell for the watch, $3 the watch, $4 folder or nothing, then the command.
# The command stands in the foreground: a shell without job control has SIGINT ignored in the background. It is not
# the last line either: shells run that one in their own place, and would die of its signal instead of telling it.
# Whether the program is there is asked first: where a folder on PATH may not be read, dash and busybox say "Permission
# denied" and 126 for one that is nowhere. One that lies there and may not be run keeps that answer, so "command -v",
# which passes it over in some shells, is not enough. PATH gets a colon: a last empty entry is dropped otherwise.
SUPERVISE = """\
limit=$1 shell=$2 watch=$3 folder=$4
shift 4
CDPATH=
if [ -n "$folder" ]; then cd -- "$folder" || exit 1; fi
exec 3<&0 4>&2 </dev/null 2>/dev/null
"$shell" -c "$watch" edgeproof-watch "$limit" "$$" <&3 >/dev/null 3<&- 4>&- &
is_there() {
  case $1 in */*) return 0 ;; esac
  command -v "$1" >/dev/null && return
  set -f
  IFS=: folders=${PATH-}:
  for folder in $folders; do
    [ ! -e "${folder:-.}/$1" ] || return 0
  done
  return 1
}
(is_there "$1" || { echo "$1: not found" >&4; exit 127; }; exec "$@" 2>&4 3<&- 4>&-)
exit "$?"
"""

# Hash stdin with what is there.
_HASH = """\
hash_in() {
  case $hash in
    openssl) openssl dgst -sha256 -r ;;
    shasum) shasum -a 256 ;;
    *) sha256sum ;;
  esac
}
"""

# $1 target, $2 token, $3 size, $4 hash tool, $5 mode, $6 expected hash or nothing; the file on stdin.
# With an expected hash the file is checked and put in its place at once; without, its hash is printed.
# A target has a slash in it, always; the part is not made from its name, which may be as long as a name can be.
RECEIVE_FILE = (
    _HASH
    + """\
target=$1 folder=${1%/*} part=${1%/*}/.$2.part size=$3 hash=$4 mode=$5 expected=$6
if [ -d "$target" ]; then echo "it is a folder; name the file it should become" >&2; exit 21; fi
trap 'rm -f -- "$part"; exit 1' HUP INT TERM
if [ -n "$folder" ] && [ ! -d "$folder" ]; then mkdir -p -- "$folder" || exit 1; fi
if ! cat > "$part"; then rm -f -- "$part"; exit 28; fi
got=$(wc -c < "$part")
if [ "$got" -ne "$size" ]; then rm -f -- "$part"; echo "got $got of $size bytes" >&2; exit 74; fi
sum=$(hash_in < "$part") || { rm -f -- "$part"; exit 1; }
sum=${sum%% *}
chmod "$mode" "$part"
if [ -n "$expected" ]; then
  if [ "$sum" != "$expected" ]; then rm -f -- "$part"; echo "it arrived damaged, with hash $sum" >&2; exit 74; fi
  mv -f -- "$part" "$target" || { rm -f -- "$part"; exit 1; }
fi
echo "sha256=$sum"
"""
)

# $1 target, $2 token: what RECEIVE_FILE left beside it takes its name.
PLACE = 'mv -f -- "${1%/*}/.$2.part" "$1"'

# $1 target, $2 token: drop what did not arrive well.
DISCARD = 'rm -f -- "${1%/*}/.$2.part"'

# One hash over the sorted hashes of all files below here; names are the tar stream's own business. A name with a
# newline is escaped, with a backslash before the hash, or (busybox) goes on in lines of its own.
_HASH_TREE = """\
hash_tree() {
  case $hash in
    openssl) find . -type f -exec openssl dgst -sha256 -r {} + ;;
    shasum) find . -type f -exec shasum -a 256 {} + ;;
    *) find . -type f -exec sha256sum {} + ;;
  esac | sed -n 's/^\\\\\\{0,1\\}\\([0-9a-f]\\{64\\}\\) .*/\\1/p' | LC_ALL=C sort | hash_in
}
"""

# $1 target, $2 token, $3 hash tool, $4 expected hash of the tree; a tar stream on stdin.
RECEIVE_FOLDER = (
    _HASH
    + _HASH_TREE
    + """\
target=$1 part=${1%/*}/.$2.part hash=$3 expected=$4
case $part in /*) full=$part ;; *) full=$PWD/$part ;; esac
if [ -e "$target" ] && { [ ! -d "$target" ] || [ -n "$(ls -A "$target")" ]; }; then
  echo "it exists there and is not an empty folder" >&2; exit 17
fi
trap 'rm -rf -- "$full"; exit 1' HUP INT TERM
mkdir -p -- "$part" || exit 1
(cd -- "$part" && exec tar -xf -) || { rm -rf -- "$part"; exit 28; }
sum=$(cd -- "$part" && hash_tree)
if [ "${sum%% *}" != "$expected" ]; then rm -rf -- "$part"; echo "it arrived damaged or incomplete" >&2; exit 74; fi
{ [ ! -d "$target" ] || rmdir -- "$target"; } && mv -- "$part" "$target" || { rm -rf -- "$part"; exit 17; }
"""
)

# $1 path, $2 hash tool; a file or a folder's tar stream on stdout, its kind and hash on stderr.
SEND = (
    _HASH
    + _HASH_TREE
    + """\
hash=$2
if [ -d "$1" ]; then
  echo "kind=folder" >&2
  cd -- "$1" || exit 1
  { sum=$(hash_tree) && echo "sha256=${sum%% *}" >&2; } &
  tar -cf - . || exit 1
  wait
  exit 0
fi
if [ ! -f "$1" ]; then echo "there is no such file" >&2; exit 2; fi
{ sum=$(hash_in < "$1") && echo "sha256=${sum%% *}" >&2; } &
cat < "$1" || exit 1
wait
"""
)

# What both keepers of a lease begin with; $1 is the lock folder. Every account of the board may write in it, so nothing
# there is trusted. We go into the folder once, PWD says after "cd -P" that no link led us elsewhere, and stay. Of a
# note the kernel says which file was opened, in case a link took its place meanwhile. What is said comes by printf, for
# some echo makes two lines of a note with "\n" in it. The folder is sticky: what an account put there is its own.
# A board that has just started knows nothing of a holder from before, who may not know of the start yet: it settles.
_ENTER = """\
folder=${1%/} who=$2 patience=$3 limit=$4 stale=$5 uptime=${6:-/proc/uptime}
CDPATH=
umask 022
set -C
refuse() { printf 'refused: %s\\n' "$1"; exit 1; }
if [ -L "$folder" ]; then refuse "$folder is a link"; fi
case $folder in */*) parent=${folder%/*}/ ;; *) parent=./ ;; esac
if [ ! -d "$folder" ]; then
  mkdir -p -- "$parent" && (umask 0; mkdir -- "$folder") || [ -d "$folder" ] || refuse "$folder cannot be made"
fi
cd -P -- "$parent" || exit 1
base=${PWD%/}/${folder##*/}
cd -P -- "./${folder##*/}" || exit 1
if [ "$PWD" != "$base" ]; then refuse "$folder is a link"; fi
if [ -O . ] && [ ! -k . ]; then case $(ls -ld .) in d???????wx*) chmod +t . ;; esac; fi
note() { rm -f -- "$1"; printf '%s since %s' "$who" "$(date +%H:%M:%S)" > "$1"; }
settle() {
  while { read -r up rest < "$uptime"; } 2>/dev/null && [ "${up%%.*}" -lt "$stale" ]; do sleep 1; done
}
peek() {
  text=
  if [ ! -f "$1" ] || [ -L "$1" ]; then return; fi
  {
    opened=$(readlink /proc/self/fd/8)
    if [ "${opened:-$base/$1}" = "$base/$1" ]; then
      text=$(dd bs=200 count=1 <&8 | tr -d '\\000-\\011\\013-\\037\\177' | sed 1q)
    fi
  } 2>/dev/null 8< "$1"
}
"""

# $1 lock folder, $2 who we are, $3 seconds to wait, $4 heartbeat limit or nothing, $5 the limit where read has none.
# The kernel's lock on the folder is the lease: it goes with this process, and this process goes with its client (end
# of file) or its heartbeat; every beat is answered. We wait in the kernel, for the holder is measuring; only busybox's
# flock, which cannot, asks again. An account cannot replace another's note: each has its own, and the newest counts.
KEEP_LEASE = (
    _ENTER
    + """\
exec 9< . || exit 1
say() {
  newest=
  for each in holder.*; do
    if [ -z "$newest" ] || [ "$each" -nt "$newest" ]; then newest=$each; fi
  done
  peek "$newest"
  printf '%s %s\\n' "$1" "$text"
}
if ! flock -n 9; then
  say busy
  flock -E 75 -w "$patience" 9 2>/dev/null
  case $? in
    0) ;;
    75) say late; exit 75 ;;
    *)
      until flock -n 9; do
        if [ "$patience" -le 0 ]; then say late; exit 75; fi
        sleep 1
        patience=$((patience - 1))
      done ;;
  esac
fi
if [ ! . -ef "$base" ]; then refuse "$folder was replaced by another"; fi
own=holder.${UID:-$(id -u)}
note "$own" 2>/dev/null
settle
next_beat() {
  if [ -n "$limit" ]; then read -r -t "$limit" beat; return; fi
  (sleep "$stale"; kill "$$") </dev/null >/dev/null 2>&1 9<&- &
  read -r beat
  set -- "$?" "$!"
  kill "$2" 2>/dev/null
  return "$1"
}
printf 'held\\n'
while next_beat && [ . -ef "$base" ]; do printf 'beat\\n'; done
rm -f -- "$own"
"""
)

# The same for a board without flock, with the atomic mkdir. The lease is a folder lock.<number>, and the highest number
# counts: it is free when it has a file "released", or when no new file beat.<number> comes for $5 seconds. Whoever
# makes the next number has the lease, unless a higher one came meanwhile: the highest is never removed, so nobody can
# take a number that was taken and cleaned away. A holder that finds a higher number was taken for dead, and ends.
# Seconds are counted by sleeping, not told from the clock: a board's clock jumps when the network sets it.
# Other accounts can read what is in a lease's folder, and not write there: a holder goes into its own, and writes there
# if the folder is what it made. A number that begins with 0 would be octal, and is none of ours.
KEEP_LEASE_BY_FOLDER = (
    _ENTER
    + """\
if [ ! -w . ]; then refuse "$folder cannot be written"; fi
say() { peek "lock.$top/holder"; printf '%s %s\\n' "$1" "$text"; }
find_top() {
  top=0
  for lock in "$base"/lock.*; do
    number=${lock##*/lock.}
    case $number in 0* | *[!0-9]* | ?????????????* | "") continue ;; esac
    [ "$number" -le "$top" ] || top=$number
  done
}
is_own() { cd -P -- "$1" && [ "$PWD" = "$1" ] && [ -O . ]; }
take() {
  mine=$((top + 1))
  mkdir -- "lock.$mine" 2>/dev/null || return 1
  find_top
  [ "$top" = "$mine" ] && return
  rmdir -- "lock.$mine"
  return 1
}
told= watched= waited=0 unchanged=0
while :; do
  find_top
  if [ "$top" = 0 ] || [ -e "lock.$top/released" ]; then take && break; fi
  set -- "lock.$top"/beat.*
  if [ "$watched" != "$*" ]; then watched=$* unchanged=0; fi
  if [ "$unchanged" -ge "$stale" ]; then take && break; fi
  if [ -z "$told" ]; then say busy; told=yes; fi
  if [ "$waited" -ge "$patience" ]; then say late; exit 75; fi
  sleep 1
  waited=$((waited + 1)) unchanged=$((unchanged + 1))
done
is_own "$base/lock.$mine" || refuse "$folder/lock.$mine is not what we made"
trap 'true > released' EXIT
trap 'exit 1' HUP INT TERM
note holder
for lock in "$base"/lock.*; do
  number=${lock##*/lock.}
  case $number in 0* | *[!0-9]* | ?????????????* | "") continue ;; esac
  if [ "$number" -lt "$mine" ]; then (is_own "$lock" && rm -f -- holder released beat.* && rmdir -- "$lock"); fi
done 2>/dev/null
settle
find_top
[ "$top" = "$mine" ] || refuse "it was taken from us"
printf 'held\\n'
beats=0
while read -r ${limit:+-t "$limit"} beat; do
  beats=$((beats + 1))
  true > "beat.$beats" || exit 1
  rm -f -- "beat.$((beats - 1))"
  find_top
  [ "$top" = "$mine" ] || exit 1
  printf 'beat\\n'
done
"""
)
