// Command hold keeps an image in use on a node. It is put into a pod of that image, which may have neither a
// shell nor a C library, and there sleeps until it is told to stop.
//
//	hold              sleep until SIGTERM or SIGINT; as process 1 also reap what the pod leaves behind
//	hold install DIR  put this program into DIR, for another container of the pod to run, and exit
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	switch {
	case len(os.Args) == 1:
		sleep()
	case len(os.Args) == 3 && os.Args[1] == "install":
		if err := install(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "hold install:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: hold | hold install DIR")
		os.Exit(2)
	}
}

// sleep returns once the process is told to stop. Exit code 0: a pod that is deleted has not failed.
func sleep() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap collects every child that has ended: signals of several may come as one.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.EINTR && pid <= 0 {
			return
		}
	}
}

// install copies the program that runs, and shows it under its name only when it is whole.
func install(directory string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	copied, err := os.CreateTemp(directory, ".hold-*")
	if err != nil {
		return err
	}
	defer os.Remove(copied.Name())
	if _, err := io.Copy(copied, self); err != nil {
		return err
	}
	if err := copied.Chmod(0o755); err != nil {
		return err
	}
	if err := copied.Close(); err != nil {
		return err
	}
	return os.Rename(copied.Name(), filepath.Join(directory, "hold"))
}
