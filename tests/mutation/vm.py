"""Faults of the sandbox VM: what its guest costs the host, and what leads out of the project."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

IMAGES = ("unit/test_vm_images.py::test_an_image_that_leads_to_other_files_is_refused",)

MUTANTS = (
    Mutant(
        "relay-takes-no-slot",
        "the guest starts as many relays on the host as it likes",
        "vm/relay.py",
        "    if not _take_slot(slots):\n",
        "    if _take_slot(slots) is None:\n",
        ("unit/test_vm_relay.py::test_there_is_a_limit_of_relays_and_each_that_ends_makes_room",),
    ),
    Mutant(
        "relay-buffers-have-no-limit",
        "each connection that takes nothing costs the host megabytes of kernel memory",
        "vm/relay.py",
        "        peer.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)\n",
        "        peer.getsockopt(socket.SOL_SOCKET, buffer)\n",
        ("unit/test_vm_relay.py::test_the_kernel_keeps_little_of_what_the_guest_does_not_take",),
    ),
    Mutant(
        "relay-waits-for-ever",
        "a relay hangs for as long as the guest takes nothing",
        "vm/relay.py",
        "poller.poll(STALL_LIMIT * 1000 if to_guest else None)",
        "poller.poll(None)",
        ("unit/test_vm_relay.py",),
    ),
    Mutant(
        "image-follows-a-backing-file",
        "an image shows the guest any file of the user's",
        "vm/images.py",
        'found.get("backing-filename") or ',
        "",
        IMAGES,
    ),
    Mutant(
        "image-follows-a-data-file",
        "an image shows the guest any file of the user's, as its data file",
        "vm/images.py",
        'specific.get("data-file")',
        "None",
        IMAGES,
    ),
    Mutant(
        "image-is-looked-at-once",
        "an image that leads to other files is taken once there is a disk over it",
        "vm/images.py",
        "        _self_contained(image.disk)\n        return\n",
        "        return\n",
        IMAGES,
    ),
    Mutant(
        "environment-leads-into-the-project",
        "a variable names the agent's code or authorities for programs on the host",
        "vm/trusted_programs.py",
        "    _check_environment(project)\n",
        "",
        ("unit/test_vm_trusted_programs.py::test_no_variable_may_lead_into_the_project",),
    ),
    Mutant(
        "guest-output-is-kept-whole",
        "the guest fills the host's memory while it is set up",
        "vm/boot.py",
        "(said + part)[-_MAX_SAID:]",
        "said + part",
        ("unit/test_vm_command.py::test_only_the_end_of_what_a_guest_says_is_kept",),
    ),
)
