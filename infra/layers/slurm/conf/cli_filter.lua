
-- Counts -N in hosts before srun, salloc and sbatch count tasks by it, as --switches says to job_submit.lua.

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  local gres = options["gres"]
  if gres and string.find(gres, "tpu") then  -- slurmctld knows no such resource, and says no more than that
    slurm.log_error("--gres=" .. string.gsub(gres, "^gres[:/]", "") .. ": a job has whole slices, with the chips of all of their " ..
      "hosts: leave --gres out")
    return slurm.ERROR
  end
  local counted = options["switches"] ~= nil and options["switches"] ~= "unset"
  if os.getenv("SLURM_JOB_ID") or counted then return slurm.SUCCESS end  -- a step of a job has its nodes
  -- Of several partitions job_submit.lua takes those of one size alone.
  local first = string.match(options["partition"] or DEFAULT, "[^,]+")
  local known, nodes = PARTITIONS[first], options["nodes"]
  local unset = nodes == nil or nodes == "1-0"  -- as Slurm 22.05 prints it
  local number = unset and 1 or tonumber(nodes)
  if known == nil or number == nil or number < 1 then return slurm.SUCCESS end  -- job_submit.lua says what is wrong
  local hosts = (COUNTS_SLICES or unset) and number * known.hosts or number
  if hosts % known.hosts ~= 0 then return slurm.SUCCESS end
  options["nodes"] = tostring(hosts)
  options["switches"] = tostring(hosts / known.hosts)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job, step)
  return slurm.SUCCESS
end
