# shellcheck shell=bash
# locks: wait for other programs that set up the machine.

# held FILE: check that a process holds the POSIX lock of dpkg or apt.
held() { [[ -e $1 ]] && grep -q ":$(stat --format=%i "$1") " /proc/locks; }

stage_locks() {
  local file deadline=$((SECONDS + 120))
  if command -v snap >/dev/null; then
    timeout 120 snap wait system seed.loaded || log "warning: snapd isn't done after 120 s; continuing"
  fi
  # Later stages install no packages; but a running upgrade replaces libraries that they use.
  for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock; do
    while held "$file"; do
      if ((SECONDS >= deadline)); then
        log "warning: $file is still held after 120 s; continuing"
        return
      fi
      sleep 1
    done
  done
}
