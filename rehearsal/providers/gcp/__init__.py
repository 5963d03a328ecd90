"""A small stand-in for the official gcp provider plugin, which no package registry ships.

It is a `pulumi-resource-gcp` executable: the CLI starts it, reads its port from stdout and
talks pulumi's ResourceProvider gRPC service to it. It knows the resource types that the stacks
use, one table per type (`types/`), and sends what the official provider 9.35.0 was recorded to
send; `docs/internals/standin.md` lists every known difference. It serves rehearsals on machines where the
official plugin can't be installed, and nothing else: with the official one there, use that.
`install` and the command line serve `rehearsal.providers.kubernetes` as well.
"""
