PARTITIONS = {
  ["tpu"] = { kind = "v6e-16", hosts = 4, slices = 3, cpus = 180, memory_mib = 700416 },
  ["small"] = { kind = "v6e-8", hosts = 1, slices = 1, cpus = 180, memory_mib = 1400832 },
}
DEFAULT = "tpu"
COUNTS_SLICES = true

-- A job gets whole slices of one size. What it asks is checked before it waits, and counted in hosts after.
local SLURM_UNSET = 4294967294  -- slurm.NO_VAL

local function refuse(text)
  slurm.log_user(text)
  return slurm.ERROR
end

-- scontrol of 22.05 shows the meaning of the code alone: "Node count specification invalid".
local function recount(text)
  slurm.log_user(text)
  return slurm.ESLURM_INVALID_NODE_COUNT
end

local function given(number)
  if number == nil or number >= SLURM_UNSET then return nil end
  return number
end

-- Return the partition whose slices the job asks for, or nil and what is wrong.
local function partition_of(names)
  local known, name
  for part in string.gmatch(names, "[^,]+") do
    local entry = PARTITIONS[part]
    if entry and known and entry.kind ~= known.kind then
      return nil, "-p " .. names .. ": slices of " .. name .. " are " .. known.kind .. ", of " .. part ..
        " " .. entry.kind .. ": name one partition"
    end
    if entry and (known == nil or entry.slices > known.slices) then known, name = entry, part end
  end
  return known, nil, name
end

-- Return the number of hosts that -N asks for; or nil, and what is wrong.
local function hosts_of(job, known, name)
  local least, most = given(job.min_nodes), given(job.max_nodes)
  if least == nil or least == 0 then return known.hosts end
  if most ~= nil and most ~= 0 and most ~= least then
    return nil, "-N " .. least .. "-" .. most .. ": a job has a number of slices, not a range: write one number"
  end
  local slices = given(job.req_switch)  -- cli_filter.lua has counted in hosts already
  if slices and least ~= slices * known.hosts then
    return nil, "-N " .. least .. " with --switches=" .. slices .. ": beside --switches, -N counts hosts, and a slice of " ..
      name .. " has " .. known.hosts .. ": leave --switches out; srun takes -n " .. slices * known.hosts ..
      " or more outside of a job"
  end
  local hosts = COUNTS_SLICES and not slices and least * known.hosts or least
  if hosts % known.hosts ~= 0 then
    local less = hosts - hosts % known.hosts
    local fix = (less > 0 and less .. " or " or "") .. less + known.hosts
    return nil, "-N " .. least .. ": a slice (" .. known.kind .. ") of " .. name .. " has " .. known.hosts ..
      " hosts, and a job has whole ones: write -N " .. fix
  end
  if hosts > known.slices * known.hosts then
    local unit = COUNTS_SLICES and known.slices or known.slices * known.hosts
    if COUNTS_SLICES then least = hosts / known.hosts end
    return nil, "-N " .. least .. ": a job of " .. name .. " has " .. known.slices .. " slices at most: write -N " ..
      unit .. " or less, or raise nodeCountDynamicMax"
  end
  return hosts
end

-- Such a job would wait for ever. Slurm has written the list out: "tpu-0-w[0-3],tpu-1-w0".
local function nodes_wrong(job, known, slices)
  local seen, named = {}, 0
  for name in string.gmatch(string.gsub(job.req_nodes or "", "%b[]", ""), "([^,]+)%-w") do
    if not seen[name] then seen[name], named = true, named + 1 end
  end
  if named > slices then
    return "-w names hosts of " .. named .. " slices, the job has " .. slices .. ": write -N " ..
      (COUNTS_SLICES and named or named * known.hosts) .. ", or hosts of fewer slices"
  end
end

-- Fewer tasks than hosts are counted before slices are, and outside of a script end slurmctld 22.05 (docs/internals/log.md).
local function tasks_wrong(job, hosts)
  local tasks = given(job.num_tasks)
  if tasks and tasks < hosts then
    return "--ntasks=" .. tasks .. ": the job has " .. hosts .. " hosts, and srun starts a task on each: leave " ..
      "--ntasks and --ntasks-per-node out here, or write them at srun in the job"
  end
end

local function memory_wrong(job, known, name)
  local node, cpu = given(job.min_mem_per_node), given(job.min_mem_per_cpu)
  if node and node > known.memory_mib then
    return "--mem=" .. node .. "M: a host of " .. name .. " has " .. known.memory_mib ..
      " MiB for jobs: write less, or leave --mem out, since a job has its hosts for itself"
  end
  if cpu and cpu * known.cpus > known.memory_mib then
    return "--mem-per-cpu=" .. cpu .. "M: a job has the " .. known.cpus .. " CPUs of its hosts, and " ..
      known.memory_mib .. " MiB on each: leave it out"
  end
end

local function chips_wrong(job)
  local asked = job.tres_per_node or job.gres
  if asked and string.find(asked, "tpu") then
    return "--gres=" .. string.gsub(asked, "^gres:", "") .. ": a job has whole slices, with the chips of all of their " ..
      "hosts: leave --gres out"
  end
end

-- squeue prints a name as it is: with a line break it would be no line a job.
local function name_wrong(job)
  if job.name and string.find(job.name, "%c") then
    return "--job-name: it has a line break or another control character: write a name of one line"
  end
end

function slurm_job_submit(job, partitions, uid)
  local known, wrong, name = partition_of(job.partition or DEFAULT)
  wrong = wrong or name_wrong(job)
  if wrong then return refuse(wrong) end
  if known == nil then return slurm.SUCCESS end  -- slurmctld says that there is no such partition
  local hosts
  hosts, wrong = hosts_of(job, known, name)
  wrong = wrong or nodes_wrong(job, known, hosts / known.hosts) or tasks_wrong(job, hosts) or
    memory_wrong(job, known, name) or chips_wrong(job)
  if wrong then return refuse(wrong) end
  -- A step of fewer tasks than hosts ends slurmctld 22.05 (SIGFPE): srun asks for it where nobody has counted in hosts.
  if (job.script == nil or job.script == "") and not given(job.req_switch) then
    return refuse("srun and salloc start a job on a login node alone, where -N counts what it counts for sbatch")
  end
  job.min_nodes, job.max_nodes = hosts, hosts
  job.req_switch = hosts / known.hosts
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  local known, wrong, name = partition_of(job.partition or record.partition or DEFAULT)
  local before = partition_of(record.partition or DEFAULT)
  if known and before and known.kind ~= before.kind then
    return recount("Partition=" .. job.partition .. ": its slices are " .. known.kind .. ", and the job's are " ..
      before.kind .. ": cancel it, and submit another")
  end
  wrong = wrong or name_wrong(job) or (known and memory_wrong(job, known, name))
  if wrong then return refuse(wrong) end
  local hosts = given(job.min_nodes)
  if known and hosts and (hosts % known.hosts ~= 0 or hosts > known.slices * known.hosts) then
    return recount("NumNodes=" .. hosts .. ": a job of " .. name .. " has whole slices of " .. known.hosts ..
      " hosts, " .. known.slices .. " at most: cancel it, and submit another")
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
