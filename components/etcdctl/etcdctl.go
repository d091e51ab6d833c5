// Package etcdctl is etcd's own command line client, of etcd's own commands: what
// runbooks for control planes have operators call in the pods of etcd.
package etcdctl

import (
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3/command"
)

// NewCommand makes the command, with what has to do with members, their health and
// their data. Users and roles of etcd's own, locks and elections are left out:
// nothing in a cluster has any.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "etcdctl",
		Short: "A client of etcd: its members, their health, snapshots and keys",
		Long: "A client of etcd: its members, their health, snapshots and keys. A flag that all its commands have can be\n" +
			"given as a variable of the environment as well, --cacert as ETCDCTL_CACERT.",
	}
	f := c.PersistentFlags()
	f.StringSlice("endpoints", []string{"127.0.0.1:2379"}, "Addresses of members.")
	f.String("cacert", "", "The authorities that vouch for members.")
	f.String("cert", "", "The certificate to show to members.")
	f.String("key", "", "The key of the certificate.")
	f.StringP("write-out", "w", "simple", "The form of what is printed: fields, json, protobuf, simple or table.")
	f.Bool("hex", false, "Print bytes as hexadecimal numbers.")
	f.Bool("debug", false, "Print what the client does.")
	f.Duration("dial-timeout", 2*time.Second, "How long to wait for a connection.")
	f.Duration("command-timeout", 5*time.Second, "How long to wait for a short command, after that.")
	f.Duration("keepalive-time", 2*time.Second, "How often to see whether a connection still is one.")
	f.Duration("keepalive-timeout", 6*time.Second, "How long to wait for an answer to that.")
	f.Int("max-request-bytes", 0, "The size of the largest request; 0: 2 MiB.")
	f.Int("max-recv-bytes", 0, "The size of the largest answer; 0: 2 GiB.")
	f.Bool("insecure-transport", true, "Use no TLS, without --cacert and with addresses that do not say https.")
	f.Bool("insecure-skip-tls-verify", false, "Trust whoever answers: for trials alone.")
	f.String("user", "", "A user of etcd's, and after a colon the password.")
	f.String("password", "", "The password of the user.")
	f.String("auth-jwt-token", "", "A token, in place of a user.")
	f.StringP("discovery-srv", "d", "", "A domain whose SRV records tell the members.")
	f.String("discovery-srv-name", "", "The name of the service in those records.")
	f.Bool("insecure-discovery", true, "Take addresses without TLS from those records.")

	c.AddGroup(command.NewKVGroup(), command.NewClusterMaintenanceGroup(), command.NewUtilityGroup())
	c.AddCommand(
		command.NewGetCommand(), command.NewPutCommand(), command.NewDelCommand(), command.NewWatchCommand(),
		command.NewMemberCommand(), command.NewEndpointCommand(), command.NewMoveLeaderCommand(),
		command.NewSnapshotCommand(), command.NewCompactionCommand(), command.NewDefragCommand(), command.NewAlarmCommand(),
		command.NewLeaseCommand(), command.NewVersionCommand(),
	)
	return c
}
