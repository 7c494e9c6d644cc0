#!/bin/sh
# The job that is an instance: sshd, as the user alone, until the time is over. Arguments: the port, then a public key each.
# Exit codes: 3 no sshd or ssh-keygen in the node.
umask 077
dir=/tmp/berth-instance-$SLURM_JOB_ID
PATH=/usr/sbin:/usr/bin:/sbin:/bin
sshd=$(command -v sshd) && command -v ssh-keygen >/dev/null || exit 3
mkdir "$dir" && cd "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
port=$1
shift
printf '%s\n' "$@" >keys
ssh-keygen -q -t ed25519 -N '' -C '' -f host || exit 1
"$sshd" -D -e -f /dev/null -p "$port" -h "$dir/host" -o PidFile="$dir/pid" -o AuthorizedKeysFile="$dir/keys" -o StrictModes=no \
	-o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o UsePAM=no -o AcceptEnv='LANG LC_*' \
	-o SetEnv="TMPDIR=${TMPDIR:-/tmp} SLURM_JOB_ID=$SLURM_JOB_ID" -o Subsystem="sftp internal-sftp" 2>log &
wait $!
