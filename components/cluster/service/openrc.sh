#!/sbin/openrc-run
# hyperkube writes this file and overwrites changes to it. Set variables of OpenRC in /etc/conf.d/@name@.

description=@description@
supervisor=supervise-daemon
command=@command@
command_args=@arguments@
pidfile=/run/supervise-@name@.pid
output_log=@log@
error_log=@log@
respawn_delay=2
respawn_max=0
# Only the main process is signaled, because the container runtime and the pods keep running.
retry=TERM/30/KILL/5
rc_ulimit="${rc_ulimit:--n 1048576}"
# `hyperkube up`, `init` and `join` create this socket while they wait for the service.
export NOTIFY_SOCKET=@socket@

depend() {
	# Debian has no localmount: it mounts the file systems before it starts services.
	want localmount cgroups
	use net networking dns logger
	after bootmisc firewall iptables ip6tables nftables
	keyword -timeout
}

start_pre() {
	mkdir -p @logdir@ && (umask 077 && : >> @log@) || return 1
	# The process inherits the value. A system under memory pressure then kills pods first.
	{ echo -999 > /proc/self/oom_score_adj; } 2> /dev/null || true
}

# going_down reports whether the machine shuts down or reboots. With the init of System V, Debian stops services in the
# runlevel "off" of OpenRC, before that of the shutdown. The runlevel of init is then 0 or 6.
going_down() {
	yesno "${RC_GOINGDOWN}" || [ "${RC_RUNLEVEL}" = shutdown ] && return
	case "$(runlevel 2> /dev/null)" in
	*" "[06]) return 0 ;;
	esac
	return 1
}

# Pods stop in order before a shutdown, and keep running while only the service stops.
stop_pre() {
	if going_down; then
		ebegin "Stopping pods"
		@program@ stop --suspend-pods=pods
		eend $?
	fi
	return 0
}

stop_post() {
	if going_down; then
		@program@ stop --suspend-pods=processes
	fi
	return 0
}
