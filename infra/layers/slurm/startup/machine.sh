# shellcheck shell=bash
# A machine of Slurm: packages and program are installed by content, and Python does the rest
# (`python -m slurm boot ROLE`). Runs at every boot, and a second time finds all of it done.

# The script is a file of the bundle that it installs; the loader passes the bundle's id.
export TPU_BUNDLE=${1:?missing id of the bundle}

stage_machine() {
  identify
  attribute slurm-role SLURM_ROLE 'controller|login'
  attribute slurm-program SLURM_PROGRAM '[A-Za-z0-9][A-Za-z0-9._/-]* [0-9a-f]{64}'
}

# packages: unpack Slurm, munge and NFS over the image, whose own files win. What an earlier bundle brought makes room.
stage_packages() {
  local archive=/opt/tpu/bundles/$TPU_BUNDLE/slurm.tar.gz list=/var/lib/tpu/slurm.files marker=/var/lib/tpu/slurm.bundle
  # As hosts have them (workload/host/slurmd/install.py): /home is shared, and without _rpc no rpcbind starts, which
  # the NFS server registers with, and a mount by NFS 3, as Filestore's, needs.
  printf 'u %s %s "%s"\n' munge 64001 MUNGE slurm 64030 Slurm statd - NFS _rpc - RPC |
    write_file /etc/sysusers.d/slurm.conf >/dev/null
  systemd-sysusers /etc/sysusers.d/slurm.conf
  if [[ -f $marker && $(<"$marker") == "$TPU_BUNDLE" ]]; then
    log "the bundle's packages are there already"
    return
  fi
  cd /
  [[ ! -f $list ]] || xargs --delimiter='\n' --no-run-if-empty rm --force -- <"$list"
  tar --list --gzip --file="$archive" | grep --invert-match '/$' |
    while read -r file; do [[ -e $file || -L $file ]] || echo "$file"; done | write_file "$list" >/dev/null
  tar --extract --gzip --file="$archive" --directory=/ --skip-old-files --keep-directory-symlink --same-permissions
  chown munge:munge /etc/munge /var/lib/munge /var/log/munge
  chmod 0700 /etc/munge /var/lib/munge /var/log/munge
  chown --recursive slurm:slurm /var/lib/slurm /var/log/slurm
  ldconfig
  systemctl daemon-reload
  write_file "$marker" <<<"$TPU_BUNDLE" >/dev/null
  log "$(wc --lines <"$list") files of Slurm's packages"
}

# program: unpack the package `slurm` and the settings from the bucket, by the hash in the metadata.
stage_program() {
  local object=${SLURM_PROGRAM% *} sha256=${SLURM_PROGRAM#* } code folder
  folder=/opt/slurm/programs/$sha256
  if [[ ! -f $folder/complete ]]; then
    authorize || try_again "no token"
    code=$(gcs_get "$(object "$object")?alt=media" "$RUN/program.zip")
    [[ $code != 404 ]] || fail "there is no gs://$CHECKPOINT_BUCKET/$object: tpu up ENV slurm"
    [[ $code == 200 ]] || try_again "gs://$CHECKPOINT_BUCKET/$object: HTTP $code"
    echo "$sha256  $RUN/program.zip" | sha256sum --check --status ||
      fail "gs://$CHECKPOINT_BUCKET/$object doesn't match its sha256 in the metadata: tpu up ENV slurm"
    rm -rf "$folder"
    mkdir -p "$folder"
    /opt/tpu/venv/bin/python -m zipfile --extract "$RUN/program.zip" "$folder"
    touch "$folder/complete"
  fi
  ln -sfn "$folder" /opt/slurm/program.new
  mv -T /opt/slurm/program.new /opt/slurm/program
}

stage_role() {
  cd /opt/slurm/program || exit
  exec /opt/tpu/venv/bin/python -m slurm boot "$SLURM_ROLE"
}

begin_boot
mkdir -p /opt/slurm
# Grants of a new service account can take minutes to apply.
run_stage machine 60
run_stage bundle 420
run_stage python 0
run_stage packages 0
run_stage program 420
run_stage role 420
end_boot role
