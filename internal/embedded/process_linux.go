package embedded

import "syscall"

// childAttributes run a child as the account, in its own process group (a
// terminal's Ctrl-C is ours to pass on, in the right order), and send it
// SIGINT, PostgreSQL's fast shutdown, when its parent dies.
func childAttributes(a *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
	}
	return attr
}
