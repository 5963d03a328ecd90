# shellcheck shell=bash
# locks: nothing else is still setting up the machine.

# held FILE: whether a process holds the POSIX lock by which dpkg and apt keep one another out.
held() { [[ -e $1 ]] && grep -q ":$(stat --format=%i "$1") " /proc/locks; }

stage_locks() {
  local file deadline=$((SECONDS + 120))
  if command -v snap >/dev/null; then
    timeout 120 snap wait system seed.loaded || log "warning: snapd still isn't done after 120 s; going on"
  fi
  # Nothing below installs packages; but a running upgrade replaces libraries under our feet.
  for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock; do
    while held "$file"; do
      if ((SECONDS >= deadline)); then
        log "warning: $file is still held after 120 s; going on"
        return
      fi
      sleep 1
    done
  done
}
